#include "actors/worker_actor.h"

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "actors/actor_process.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace megascale::actors {

void WorkerState::Start() {
  core = std::make_unique<WorkerCore>(options.core);
  Perform(core->Start());
}

void WorkerState::OnGroupsJoined(const GroupsJoined& message) {
  Perform(core->OnJoined(message.outcome.ToStatus()));
}

void WorkerState::OnStateLoaded(const StateLoaded& message) {
  const absl::Status status = message.outcome.ToStatus();
  Perform(message.products_refused ? core->OnProductsRefused(status)
                                   : core->OnLoaded(status, message.warning));
}

void WorkerState::OnSnapshotTaken(const SnapshotTaken& message) {
  snapshot_time = base::RealClock().Monotonic() - snapshot_started;
  Perform(core->OnSnapshot(message.step, message.buffer, message.outcome.ToStatus()));
}

void WorkerState::OnLinkLost(const LinkLost& message) {
  base::LogError(message.why);
  options.exit(1);
}

void WorkerState::Perform(const std::vector<WorkerAction>& actions) {
  for (const WorkerAction& action : actions) PerformOne(action);
}

void WorkerState::PerformOne(const WorkerAction& action) {
  using Kind = WorkerAction::Kind;
  const int64_t attempt = options.core.attempt;
  link::v1::FromWorker message;
  switch (action.kind) {
    case Kind::kJoinGroups:
      return caf::anon_send(device, JoinGroups{attempt});
    case Kind::kLoadState:
      return caf::anon_send(shard, LoadState{attempt});
    case Kind::kStartStep:
      step_started = base::RealClock().Monotonic();
      caf::anon_send(stage, StartStep{attempt, action.step});
      return caf::anon_send(shard, StartStep{attempt, action.step});
    case Kind::kEvaluate:
      options.heartbeat->SetStep(action.step);
      evaluation_started = base::RealClock().Monotonic();
      return caf::anon_send(stage, StartEvaluation{attempt, action.step});
    case Kind::kTakeSnapshot:
      snapshot_started = base::RealClock().Monotonic();
      return caf::anon_send(checkpoint, TakeSnapshot{attempt, action.step});
    case Kind::kRaiseStop:
      return options.engine->RequestStop(action.stop);
    case Kind::kSetPhase:
      return options.heartbeat->SetPhase(action.phase);
    case Kind::kReportStep:
      options.heartbeat->SetStep(action.step);
      *message.mutable_step() = action.record;
      message.mutable_step()->set_seconds(absl::ToDoubleSeconds(step_time));
      message.mutable_step()->set_evaluation_seconds(absl::ToDoubleSeconds(evaluation_time));
      message.mutable_step()->set_checkpoint_seconds(absl::ToDoubleSeconds(snapshot_time));
      snapshot_time = absl::ZeroDuration();
      return options.report(message);
    case Kind::kReportSnapshot:
      message.mutable_sealed()->set_step(action.step);
      message.mutable_sealed()->set_buffer(action.buffer);
      return options.report(message);
    case Kind::kReportWarning:
      message.set_warning(action.warning);
      return options.report(message);
    case Kind::kReportFailure:
      base::LogError(action.failure.message());
      *message.mutable_failure() = action.failure;
      options.report(message);
      return options.exit(1);
    case Kind::kFinish:
      message.mutable_finished()->set_step(action.step);
      message.mutable_finished()->set_stopped(action.stopped);
      options.report(message);
      return options.exit(0);
  }
}

void WorkerState::OnStepFinished(const StepFinished& message) {
  step_time = base::RealClock().Monotonic() - step_started;
  evaluation_time = absl::ZeroDuration();
  const absl::Status status = message.outcome.ToStatus();
  Perform(status.ok() ? core->OnStepFinished(message.step, message.result)
                      : core->OnStepFinished(message.step, status));
}

void WorkerState::OnEvaluationFinished(const EvaluationFinished& message) {
  evaluation_time = base::RealClock().Monotonic() - evaluation_started;
  const absl::Status status = message.outcome.ToStatus();
  if (!status.ok()) return Perform(core->OnEvaluated(message.step, status));
  Perform(core->OnEvaluated(message.step,
                            message.has_loss ? std::optional<double>(message.loss) : std::nullopt));
}

void WorkerState::OnStopRequested(const StopRequested& message) {
  if (message.attempt != options.core.attempt) return;
  Perform(core->OnStopRequested(message.checkpoint));
}

WorkerActor::behavior_type Worker(WorkerActor::stateful_pointer<WorkerState> self,
                                  WorkerOptions options) {
  EndProcessOnException(self);
  WorkerState& state = self->state;
  state.options = std::move(options);
  const auto me = caf::actor_cast<WorkerEvents>(self);
  const auto& engine = state.options.engine;
  // On a stream's thread.
  engine->TellStepEnds([me, attempt = state.options.core.attempt](
                           int64_t step, const absl::StatusOr<engine::StepResult>& ended) {
    caf::anon_send(me, StepFinished{attempt, step, Outcome::Of(ended.status()),
                                    ended.ok() ? *ended : engine::StepResult()});
  });
  engine->TellEvaluationEnds([me, attempt = state.options.core.attempt](
                                 int64_t step, const absl::StatusOr<std::optional<double>>& loss) {
    const bool has_loss = loss.ok() && loss->has_value();
    caf::anon_send(me, EvaluationFinished{attempt, step, Outcome::Of(loss.status()), has_loss,
                                          has_loss ? **loss : 0});
  });
  state.device = self->spawn<caf::detached>(Device, engine, me);
  state.stage = self->spawn(Stage, engine, me);
  state.shard = self->spawn<caf::detached>(Shard, ShardOptions{engine, me, state.options.restore});
  state.checkpoint = self->spawn<caf::detached>(Checkpoint, engine, me);
  state.Start();
  return {
      [=](const GroupsJoined& m) { self->state.OnGroupsJoined(m); },
      [=](const StateLoaded& m) { self->state.OnStateLoaded(m); },
      [=](const StepFinished& m) { self->state.OnStepFinished(m); },
      [=](const EvaluationFinished& m) { self->state.OnEvaluationFinished(m); },
      [=](const SnapshotTaken& m) { self->state.OnSnapshotTaken(m); },
      [=](const StopRequested& m) { self->state.OnStopRequested(m); },
      [=](const LinkLost& m) { self->state.OnLinkLost(m); },
  };
}

}  // namespace megascale::actors
