// The device actor: owns the device's streams, memory, kernels and communicators (an
// engine::RankEngine) and makes the calls that block on the device, so it runs detached, on its own
// thread.
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

// The part of the worker's interface to which its children report.
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
