// The shard actor: loads this rank's slice of the optimizer's state, and launches the shard's part
// of the plan: gathering the parameters, reducing the gradients, the optimizer's step. The slice
// itself lies in the engine.
//   Parent: worker. Children: none.
//   Receives: LoadState, StartStep. Sends: StateLoaded to the worker; StepFinished only if a launch
//   was refused.
//   Loading reads storage, so it runs detached.
//   Restart: never alone; its failure ends the attempt.
#pragma once

#include <memory>

#include "actors/device_actor.h"
#include "proto/agent.pb.h"

namespace megascale::actors {

using ShardActor = caf::typed_actor<
    // Agrees with the other ranks on matrix products, then makes initial weights or reads the
    // restore point; answered by StateLoaded.
    caf::reacts_to<LoadState>,
    // Launches the shard's instructions of one step, as the stage actor does the stage's.
    caf::reacts_to<StartStep>>;

struct ShardOptions {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;
  megascale::agent::v1::RestorePoint restore;  // where the attempt starts
};

struct ShardState {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;
  megascale::agent::v1::RestorePoint restore;

  void OnLoadState(const LoadState& message);
  void OnStartStep(const StartStep& message);
};

ShardActor::behavior_type Shard(ShardActor::stateful_pointer<ShardState> self,
                                ShardOptions options);

}  // namespace megascale::actors
