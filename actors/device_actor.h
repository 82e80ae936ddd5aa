// The device actor: owns what a device has (streams, memory, kernels, communicators: an
// engine::RankEngine) and does what blocks on it, so it runs detached, on a thread of its own.
//   Parent: worker. Children: none.
//   Receives: JoinGroups. Sends: GroupsJoined to the worker.
//   Restart: never alone; its failure ends the attempt.
#pragma once

#include <memory>

#include "actors/messages.h"
#include "caf/all.hpp"
#include "runtime/engine/rank_engine.h"

namespace megascale::actors {

using DeviceActor = caf::typed_actor<
    // Connects this rank's groups; answered by GroupsJoined within the attempt's start timeout.
    caf::reacts_to<JoinGroups>>;

// The worker's ears: every child reports here.
using WorkerEvents = caf::typed_actor<caf::reacts_to<GroupsJoined>, caf::reacts_to<StateLoaded>,
                                      caf::reacts_to<StageFinished>, caf::reacts_to<ShardFinished>,
                                      caf::reacts_to<SnapshotTaken>>;

struct DeviceState {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;

  void OnJoinGroups(const JoinGroups& message);
};

DeviceActor::behavior_type Device(DeviceActor::stateful_pointer<DeviceState> self,
                                  std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker);

}  // namespace megascale::actors
