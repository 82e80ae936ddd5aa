#include "actors/worker_core.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/hang.h"

namespace megascale::actors {
namespace {

using Kind = WorkerAction::Kind;
using megascale::agent::v1::RankFailure;

WorkerAction PhaseIs(telemetry::v1::Phase phase) {
  return WorkerAction{.kind = Kind::kSetPhase, .phase = phase};
}

WorkerAction StepAction(Kind kind, int64_t step) {
  return WorkerAction{.kind = kind, .step = step};
}

// Only a step computes, so only a step can diverge.
RankFailure FailureOfStep(const absl::Status& status) {
  RankFailure failure = FailureOf(status);
  if (absl::IsOutOfRange(status)) {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_DIVERGED);
  }
  return failure;
}

}  // namespace

RankFailure FailureOf(const absl::Status& status) {
  RankFailure failure;
  failure.set_message(absl::StrCat(base::CodeName(status.code()), ": ", status.message()));
  for (const int rank : comm::UnreachedRanks(status)) failure.add_unreached_ranks(rank);
  if (device::IsHang(status)) {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_HUNG);
    return failure;
  }
  switch (status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      failure.set_failure_class(base::ErrnoOf(status) == 0 ? telemetry::v1::FAILURE_CLASS_ABORTED
                                                           : telemetry::v1::FAILURE_CLASS_EXITED);
      break;
    case absl::StatusCode::kDataLoss:
      failure.set_failure_class(telemetry::v1::FAILURE_CLASS_CORRUPT);
      break;
    case absl::StatusCode::kResourceExhausted:
      failure.set_failure_class(base::IsOutOfMemory(status)
                                    ? telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY
                                    : telemetry::v1::FAILURE_CLASS_EXITED);
      break;
    default:
      failure.set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
  }
  return failure;
}

RankFailure FailureOfInput(const absl::Status& status) {
  RankFailure failure = FailureOf(status);
  const bool is_wrong = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
  if (is_wrong && base::ErrnoOf(status) == 0) {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_REFUSED);
  }
  return failure;
}

RankFailure FailureOfDevice(const absl::Status& status, bool was_there) {
  return was_there ? FailureOf(status) : FailureOfInput(status);
}

std::vector<WorkerAction> WorkerCore::Start() {
  return {PhaseIs(telemetry::v1::PHASE_STARTING), WorkerAction{.kind = Kind::kJoinGroups}};
}

std::vector<WorkerAction> WorkerCore::OnJoined(const absl::Status& status) {
  if (!status.ok()) return Fail(FailureOf(status));
  return {PhaseIs(telemetry::v1::PHASE_LOADING), WorkerAction{.kind = Kind::kLoadState}};
}

std::vector<WorkerAction> WorkerCore::OnProductsRefused(const absl::Status& status) {
  MEGASCALE_CHECK(!status.ok());
  return Fail(FailureOfInput(status));
}

std::vector<WorkerAction> WorkerCore::OnLoaded(const absl::Status& status,
                                               const std::string& warning) {
  if (!status.ok()) {
    RankFailure failure = FailureOf(status);
    failure.set_at_restore(absl::IsDataLoss(status));
    failure.set_of_another_run(checkpoint::IsOfAnotherRun(status));
    return Fail(std::move(failure));
  }
  std::vector<WorkerAction> actions;
  if (!warning.empty()) actions.push_back({.kind = Kind::kReportWarning, .warning = warning});
  if (step_ >= options_.last_step) return AfterStep(std::move(actions));
  actions.push_back(PhaseIs(telemetry::v1::PHASE_FIRST_STEP));
  actions.push_back(StepAction(Kind::kStartStep, step_ + 1));
  return actions;
}

std::vector<WorkerAction> WorkerCore::OnStepFinished(
    int64_t step, const absl::StatusOr<engine::StepResult>& ended) {
  if (ended_) return {};
  MEGASCALE_CHECK(step == step_ + 1);
  if (!ended.ok()) return Fail(FailureOfStep(ended.status()));
  MEGASCALE_CHECK(ended->record.step() == step);
  step_ = step;
  WorkerAction report{.kind = Kind::kReportStep, .step = step, .record = ended->record};
  report.record.set_attempt(options_.attempt);
  stopping_ = ended->stop != engine::StopFlag::kNone;
  stop_checkpoint_ = ended->stop == engine::StopFlag::kStopWithCheckpoint;
  if (!EvaluationDue(ended->stop)) return AfterStep({std::move(report)});
  report_ = std::move(report);
  return {PhaseIs(telemetry::v1::PHASE_TRAINING), StepAction(Kind::kEvaluate, step_)};
}

// The loss log of a job that stops here and goes on elsewhere is that of an undisturbed one. A job
// that only ends needs no evaluation.
bool WorkerCore::EvaluationDue(engine::StopFlag stop) const {
  return stop != engine::StopFlag::kStop && options_.is_evaluated != nullptr &&
         options_.is_evaluated(step_);
}

std::vector<WorkerAction> WorkerCore::OnEvaluated(
    int64_t step, const absl::StatusOr<std::optional<double>>& loss) {
  if (ended_) return {};
  MEGASCALE_CHECK(step == step_);
  if (!loss.ok()) return Fail(FailureOf(loss.status()));
  std::vector<WorkerAction> actions;
  if (loss->has_value() && std::isfinite(**loss)) {
    report_.record.set_held_out_loss(**loss);
  } else if (loss->has_value()) {
    actions.push_back({.kind = Kind::kReportWarning,
                       .warning = absl::StrCat("the loss on held-out text after step ", step,
                                               " is not finite; it is left out")});
  }
  actions.push_back(std::move(report_));
  return AfterStep(std::move(actions));
}

bool WorkerCore::SnapshotDue() const {
  // An attempt that was restored from memory at the last step must still write its checkpoint.
  if (step_ >= options_.last_step || stop_checkpoint_) return true;
  if (step_ == options_.first_step) return false;
  return options_.checkpoint_interval > 0 && step_ % options_.checkpoint_interval == 0;
}

std::vector<WorkerAction> WorkerCore::AfterStep(std::vector<WorkerAction> actions) {
  if (SnapshotDue()) {
    actions.push_back(PhaseIs(telemetry::v1::PHASE_CHECKPOINT));
    actions.push_back(StepAction(Kind::kTakeSnapshot, step_));
    return actions;
  }
  return GoOn(std::move(actions));
}

std::vector<WorkerAction> WorkerCore::GoOn(std::vector<WorkerAction> actions) {
  if (step_ >= options_.last_step || stopping_) {
    ended_ = true;
    actions.push_back(PhaseIs(telemetry::v1::PHASE_FINISHED));
    actions.push_back(
        {.kind = Kind::kFinish, .step = step_, .stopped = step_ < options_.last_step});
    return actions;
  }
  actions.push_back(PhaseIs(telemetry::v1::PHASE_TRAINING));
  actions.push_back(StepAction(Kind::kStartStep, step_ + 1));
  return actions;
}

std::vector<WorkerAction> WorkerCore::OnSnapshot(int64_t step, int buffer,
                                                 const absl::Status& status) {
  if (ended_) return {};
  MEGASCALE_CHECK(step == step_);
  if (!status.ok()) return Fail(FailureOf(status));
  std::vector<WorkerAction> actions = {
      {.kind = Kind::kReportSnapshot, .step = step, .buffer = buffer}};
  return GoOn(std::move(actions));
}

std::vector<WorkerAction> WorkerCore::OnStopRequested(bool checkpoint) {
  if (ended_) return {};
  return {WorkerAction{
      .kind = Kind::kRaiseStop,
      .stop = checkpoint ? engine::StopFlag::kStopWithCheckpoint : engine::StopFlag::kStop}};
}

std::vector<WorkerAction> WorkerCore::Fail(RankFailure failure) {
  if (ended_) return {};
  ended_ = true;
  return {WorkerAction{.kind = Kind::kReportFailure, .step = step_, .failure = std::move(failure)}};
}

}  // namespace megascale::actors
