#include "actors/stage_actor.h"

#include "actors/actor_process.h"

namespace megascale::actors {

void StageState::OnStartStep(const StartStep& message) {
  const absl::Status launched = engine->Launch(plan::Owner::kStage, message.step);
  if (launched.ok()) return;
  caf::anon_send(worker, StepFinished{message.attempt, message.step, Outcome::Of(launched), {}});
}

void StageState::OnStartEvaluation(const StartEvaluation& message) {
  const absl::Status launched = engine->Evaluate(message.step);
  if (launched.ok()) return;
  caf::anon_send(worker, EvaluationFinished{message.attempt, message.step, Outcome::Of(launched)});
}

StageActor::behavior_type Stage(StageActor::stateful_pointer<StageState> self,
                                std::shared_ptr<engine::RankEngine> engine, WorkerEvents worker) {
  EndProcessOnException(self);
  self->state.engine = std::move(engine);
  self->state.worker = std::move(worker);
  return {[=](const StartStep& message) { self->state.OnStartStep(message); },
          [=](const StartEvaluation& message) { self->state.OnStartEvaluation(message); }};
}

}  // namespace megascale::actors
