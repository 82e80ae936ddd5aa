#include "actors/shard_actor.h"

#include <utility>

#include "actors/exceptions.h"
namespace megascale::actors {

void ShardActorState::OnLoadState(const LoadState& message) {
  caf::anon_send(worker, StateLoaded{message.attempt, Outcome::Of(engine->Load(restore))});
}

void ShardActorState::OnStartStep(const StartStep& message) {
  engine->Launch(
      plan::Owner::kShard, message.step, [message, worker = worker](const absl::Status& status) {
        caf::anon_send(worker, ShardFinished{message.attempt, message.step, Outcome::Of(status)});
      });
}

ShardActor::behavior_type Shard(ShardActor::stateful_pointer<ShardActorState> self,
                                ShardOptions options) {
  EndProcessOnException(self);
  self->state.engine = std::move(options.engine);
  self->state.worker = std::move(options.worker);
  self->state.restore = std::move(options.restore);
  return {[=](const LoadState& message) { self->state.OnLoadState(message); },
          [=](const StartStep& message) { self->state.OnStartStep(message); }};
}

}  // namespace megascale::actors
