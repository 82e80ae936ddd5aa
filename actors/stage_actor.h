// The stage actor: runs this rank's plan for its pipeline chunk: forward, backward, and the
// transfers of activations and their gradients. It does not know the schedule: it launches the
// plan's instructions and is told when the last of them is done.
//   Parent: worker. Children: none.
//   Receives: StartStep. Sends: StageFinished to the worker, from the stream that ended last.
//   Restart: never alone; its failure ends the attempt.
#pragma once

#include <memory>

#include "actors/device_actor.h"

namespace megascale::actors {

using StageActor = caf::typed_actor<
    // Launches the stage's instructions of one step; answered by StageFinished. Every instruction
    // has a deadline of its own, so the answer always comes.
    caf::reacts_to<StartStep>>;

struct StageState {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;

  void OnStartStep(const StartStep& message);
};

StageActor::behavior_type Stage(StageActor::stateful_pointer<StageState> self,
                                std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker);

}  // namespace megascale::actors
