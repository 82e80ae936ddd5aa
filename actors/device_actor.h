// The device actor: connects this rank's groups. Joining blocks for as long as peers need to start.
// So this actor runs detached, on its own thread, and the worker can be told to stop while it
// waits. Streams, memory, kernels and communicators lie in the engine::RankEngine that all actors
// of the worker share.
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
using WorkerEvents =
    caf::typed_actor<caf::reacts_to<GroupsJoined>, caf::reacts_to<StateLoaded>,
                     caf::reacts_to<StepFinished>, caf::reacts_to<EvaluationFinished>,
                     caf::reacts_to<SnapshotTaken>>;

struct DeviceState {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;

  void OnJoinGroups(const JoinGroups& message);
};

DeviceActor::behavior_type Device(DeviceActor::stateful_pointer<DeviceState> self,
                                  std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker);

}  // namespace megascale::actors
