#include "actors/stage_actor.h"

#include "actors/exceptions.h"

namespace megascale::actors {

void StageState::OnStartStep(const StartStep& message) {
  engine->Launch(
      plan::Owner::kStage, message.step, [message, worker = worker](const absl::Status& status) {
        caf::anon_send(worker, StageFinished{message.attempt, message.step, Outcome::Of(status)});
      });
}

StageActor::behavior_type Stage(StageActor::stateful_pointer<StageState> self,
                                std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker) {
  EndProcessOnException(self);
  self->state.engine = std::move(engine);
  self->state.worker = std::move(worker);
  return {[=](const StartStep& message) { self->state.OnStartStep(message); }};
}

}  // namespace megascale::actors
