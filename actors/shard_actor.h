// The shard actor: owns this rank's slice of the optimizer's state. It gathers the parameters,
// reduces the gradients and takes the optimizer's step.
//   Parent: worker. Children: none.
//   Receives: LoadState, StartStep. Sends: StateLoaded, ShardFinished to the worker.
//   Loading reads storage, so it runs detached.
//   Restart: never alone; its failure ends the attempt.
#pragma once

#include <memory>

#include "actors/device_actor.h"
#include "proto/agent.pb.h"

namespace megascale::actors {

using ShardActor = caf::typed_actor<
    // Makes initial weights or reads the restore point; answered by StateLoaded.
    caf::reacts_to<LoadState>,
    // Launches the shard's instructions of one step; answered by ShardFinished.
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
