// The stage actor: launches the stage's part of this rank's plan: forward, backward, and the
// transfers of activations and their gradients; and evaluations, which the engine runs by itself.
// It does not know the schedule. It is not told when its part is done, because the engine notices
// the end of a step and tells the worker.
//   Parent: worker. Children: none.
//   Receives: StartStep, StartEvaluation. Sends: StepFinished or EvaluationFinished to the worker,
//   only if the launch was refused.
//   Restart: never alone; its failure ends the attempt.
#pragma once

#include <memory>

#include "actors/device_actor.h"

namespace megascale::actors {

using StageActor = caf::typed_actor<
    // Launches the stage's instructions of one step. Every instruction has a deadline of its own,
    // so the engine's StepFinished always comes once the shard actor has launched its instructions,
    // too.
    caf::reacts_to<StartStep>,
    // Begins an evaluation; the engine's EvaluationFinished always comes.
    caf::reacts_to<StartEvaluation>>;

struct StageState {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;

  void OnStartStep(const StartStep& message);
  void OnStartEvaluation(const StartEvaluation& message);
};

StageActor::behavior_type Stage(StageActor::stateful_pointer<StageState> self,
                                std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker);

}  // namespace megascale::actors
