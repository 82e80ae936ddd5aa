#include "actors/device_actor.h"

#include "actors/actor_process.h"

namespace megascale::actors {

void DeviceState::OnJoinGroups(const JoinGroups& message) {
  caf::anon_send(worker, GroupsJoined{message.attempt, Outcome::Of(engine->Join())});
}

DeviceActor::behavior_type Device(DeviceActor::stateful_pointer<DeviceState> self,
                                  std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker) {
  EndProcessOnException(self);
  self->state.engine = std::move(engine);
  self->state.worker = std::move(worker);
  return {[=](const JoinGroups& message) { self->state.OnJoinGroups(message); }};
}

}  // namespace megascale::actors
