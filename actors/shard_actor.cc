#include "actors/shard_actor.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "actors/actor_process.h"

namespace megascale::actors {

void ShardState::OnLoadState(const LoadState& message) {
  const absl::Status chosen = engine->ChooseProducts(restore);
  if (!chosen.ok()) {
    caf::anon_send(worker, StateLoaded{message.attempt, Outcome::Of(chosen), "", true});
    return;
  }
  const absl::StatusOr<std::string> loaded = engine->Load(restore);
  caf::anon_send(worker, StateLoaded{message.attempt, Outcome::Of(loaded.status()),
                                     loaded.ok() ? *loaded : "", false});
}

void ShardState::OnStartStep(const StartStep& message) {
  const absl::Status launched = engine->Launch(plan::Owner::kShard, message.step);
  if (launched.ok()) return;
  caf::anon_send(worker, StepFinished{message.attempt, message.step, Outcome::Of(launched), {}});
}

ShardActor::behavior_type Shard(ShardActor::stateful_pointer<ShardState> self,
                                ShardOptions options) {
  EndProcessOnException(self);
  self->state.engine = std::move(options.engine);
  self->state.worker = std::move(options.worker);
  self->state.restore = std::move(options.restore);
  return {[=](const LoadState& message) { self->state.OnLoadState(message); },
          [=](const StartStep& message) { self->state.OnStartStep(message); }};
}

}  // namespace megascale::actors
