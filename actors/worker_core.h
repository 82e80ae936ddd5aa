// A worker's decisions, as a plain class: events of one rank's attempt in, actions out. No actors,
// no clock, no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/engine/rank_engine.h"

namespace megascale::actors {

struct WorkerCoreOptions {
  int64_t attempt = 1;
  int64_t first_step = 0;           // completed steps at the start
  int64_t last_step = 0;            // spec.train.steps
  int64_t checkpoint_interval = 0;  // 0: only the last step
  // Whether the weights after a step are evaluated on held-out text; empty: never.
  std::function<bool(int64_t step)> is_evaluated = nullptr;
};

struct WorkerAction {
  enum class Kind {
    kJoinGroups,
    kLoadState,
    kStartStep,       // `step`
    kEvaluate,        // the weights after `step`
    kReportStep,      // `record`
    kTakeSnapshot,    // `step`
    kReportSnapshot,  // `step`, `buffer`
    kRaiseStop,       // tell the peers `stop` in the next step
    kSetPhase,        // `phase`
    kReportWarning,   // `warning`, for people; the rank goes on
    kReportFailure,   // `failure`, then the process exits with status 1
    kFinish,          // `step`, `stopped`, then the process exits with status 0
  };
  Kind kind;
  int64_t step = 0;
  int buffer = 0;
  bool stopped = false;
  engine::StopFlag stop = engine::StopFlag::kNone;
  megascale::telemetry::v1::Phase phase = megascale::telemetry::v1::PHASE_UNSPECIFIED;
  megascale::telemetry::v1::StepRecord record = {};
  megascale::agent::v1::RankFailure failure = {};
  std::string warning = {};
};

// Threads: one. Requires: each event is passed once, in answer to the action that asked for it.
class WorkerCore {
 public:
  explicit WorkerCore(WorkerCoreOptions options) : options_(options), step_(options.first_step) {}

  std::vector<WorkerAction> Start();
  std::vector<WorkerAction> OnJoined(const absl::Status& status);
  // Comes instead of OnLoaded if the ranks have no table of matrix products that they can use.
  std::vector<WorkerAction> OnProductsRefused(const absl::Status& status);
  // `warning`: from a load that succeeded; empty: nothing was wrong.
  std::vector<WorkerAction> OnLoaded(const absl::Status& status, const std::string& warning);
  // A step has ended: with its result, or with the error of this rank.
  std::vector<WorkerAction> OnStepFinished(int64_t step,
                                           const absl::StatusOr<engine::StepResult>& ended);
  // An evaluation of the weights after `step` has ended: with the loss, with nothing if there is no
  // held-out window, or with the error of this rank.
  std::vector<WorkerAction> OnEvaluated(int64_t step,
                                        const absl::StatusOr<std::optional<double>>& loss);
  std::vector<WorkerAction> OnSnapshot(int64_t step, int buffer, const absl::Status& status);
  std::vector<WorkerAction> OnStopRequested(bool checkpoint);

  int64_t step() const { return step_; }  // completed

 private:
  std::vector<WorkerAction> Fail(megascale::agent::v1::RankFailure failure);
  bool EvaluationDue(engine::StopFlag stop) const;
  std::vector<WorkerAction> AfterStep(std::vector<WorkerAction> actions);
  std::vector<WorkerAction> GoOn(std::vector<WorkerAction> actions);
  bool SnapshotDue() const;

  WorkerCoreOptions options_;
  int64_t step_;
  bool stopping_ = false;  // all ranks agreed to stop here
  bool stop_checkpoint_ = false;
  bool ended_ = false;
  WorkerAction report_ = {WorkerAction::Kind::kReportStep};  // waits for its evaluation
};

// Returns the failure that a worker or host reports for `status`. If the process's own device hangs
// (device::IsHang), that is a hang, which the failure detector would find only later. Aborted,
// Unavailable and DeadlineExceeded blame a peer, unless they carry the errno of the process's own
// system call; DataLoss means a corrupt copy. Whatever the code, another attempt follows, because
// none of these failures needs a person to act first.
megascale::agent::v1::RankFailure FailureOf(const absl::Status& status);

// As FailureOf, for a check of the user's input (job file, data, numerics): InvalidArgument and
// FailedPrecondition become a refusal, which ends the job, unless a system call failed.
megascale::agent::v1::RankFailure FailureOfInput(const absl::Status& status);

// Returns the failure of a process that could not make its device. If the job's first preflight has
// not passed yet (`was_there` is false), returns FailureOfInput, because the job file asks for a
// device that this machine does not have. Otherwise returns FailureOf, because the device was there
// and may be there again in the next attempt.
megascale::agent::v1::RankFailure FailureOfDevice(const absl::Status& status, bool was_there);

}  // namespace megascale::actors
