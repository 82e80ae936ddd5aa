#include "cli/diagnosis/job_report.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/view/live_view.h"
#include "runtime/base/text/counted.h"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/stall.h"
#include "runtime/telemetry/doing.h"

namespace megascale::cli {
namespace {

// A job stands still if nothing has begun or ended on any rank for this many of its steps, and for
// this long.
constexpr double kStallSteps = 2;
constexpr double kStallSecondsMin = 1;
// Before its first whole step: for this long, and for this share of fault.progress_timeout.
constexpr double kFirstStepSecondsMin = 10;
constexpr double kFirstStepShare = 0.5;

bool WaitsForStorage(const telemetry::v1::RankStatus& status) {
  return status.activity() == telemetry::v1::ACTIVITY_WAIT_FOR_STORAGE;
}

void SayStorage(const control::v1::Job& job, const std::string& who, Findings* findings) {
  findings->cause = "storage";
  findings->verdict = absl::StrCat("stuck: ", who, " for checkpoint storage");
  if (!job.has_storage_failure()) return;
  findings->evidence.push_back(absl::StrCat(base::Printable(job.storage_failure().node_id()), ": ",
                                            base::Printable(job.storage_failure().message(), 300)));
}

void SaySaving(const std::string& who, Findings* findings) {
  findings->cause = "checkpoint";
  findings->verdict = absl::StrCat("saving a checkpoint: ", who, "; the next step begins after it");
}

// Returns "all 4 ranks", "2 of 4 ranks".
std::string CountText(int count, int all) {
  if (all == 1) return "the only rank";
  return count == all ? absl::StrCat("all ", all, " ranks")
                      : absl::StrCat(count, " of ", all, " ranks");
}

// No rank stands out: each one that waits for no other may be saving.
void AddReportOfAll(const control::v1::Job& job, absl::Span<const int> waiting,
                    Diagnosis* diagnosis) {
  int num_candidates = 0;
  int num_saving = 0;
  int num_for_storage = 0;
  for (int rank = 0; rank < job.ranks_size(); ++rank) {
    if (absl::c_linear_search(waiting, rank)) continue;
    ++num_candidates;
    num_saving += telemetry::Saves(job.ranks(rank).status()) ? 1 : 0;
    num_for_storage += WaitsForStorage(job.ranks(rank).status()) ? 1 : 0;
  }
  if (num_candidates == 0 || num_saving < num_candidates) return;
  const std::string who = CountText(num_candidates, job.ranks_size());
  Findings& findings = diagnosis->findings;
  if (num_for_storage == num_candidates) {
    SayStorage(job, absl::StrCat(who, num_candidates == 1 ? " waits" : " wait"), &findings);
  } else {
    SaySaving(absl::StrCat(who, num_candidates == 1 ? " copies it" : " copy it"), &findings);
  }
  findings.excluded.clear();  // these were the ranks that may be the cause
  diagnosis->rank_on_node = -1;
  diagnosis->is_undecided = false;
}

Diagnosis DiagnoseFailure(const control::v1::Job& job) {
  Diagnosis diagnosis;
  Findings& findings = diagnosis.findings;
  const control::v1::Culprit& culprit = job.culprit();
  diagnosis.rank = culprit.rank();
  diagnosis.node = base::Printable(culprit.node_id());
  findings.cause = kFailedRank;
  findings.verdict = absl::StrCat(
      "failed: ", culprit.rank() >= 0 ? absl::StrCat("rank ", culprit.rank(), ", ") : "", "node ",
      diagnosis.node, ", in attempt ", culprit.attempt());
  if (culprit.failure_class() == telemetry::v1::FAILURE_CLASS_LINK) {
    absl::StrAppend(&findings.verdict, "; no answer from rank ", culprit.peer_rank(), ", node ",
                    base::Printable(culprit.peer_node_id()),
                    ", though both machines reach the driver");
  }
  // What the rank did last stands on a line of its own.
  for (const absl::string_view line : absl::StrSplit(culprit.evidence(), '\n')) {
    findings.evidence.push_back(base::Printable(line, 500));
  }
  findings.done.push_back(
      absl::StrCat(base::Counted(job.restarts(), "restart"), "; the job is ", StateLine(job)));
  findings.advice.push_back(absl::StrCat("look at what it wrote: `megascale logs ", job.job_id(),
                                         " --attempt ", culprit.attempt(), "`"));
  return diagnosis;
}

// A culprit stays recorded after the job has recovered, and when somebody cancels it.
bool HasFailed(const control::v1::Job& job) {
  switch (job.state()) {
    case control::v1::JOB_STATE_RUNNING:
    case control::v1::JOB_STATE_SUCCEEDED:
    case control::v1::JOB_STATE_CANCELLING:
    case control::v1::JOB_STATE_CANCELLED:
      return false;
    default:
      return job.has_culprit();
  }
}

}  // namespace

double StallLimitSeconds(const job::v1::FaultSpec& fault, double step_seconds) {
  if (step_seconds > 0) return std::max(kStallSecondsMin, kStallSteps * step_seconds);
  const double timeout = static_cast<double>(fault.progress_timeout().seconds()) +
                         fault.progress_timeout().nanos() / 1e9;
  return std::max(kFirstStepSecondsMin, kFirstStepShare * timeout);
}

namespace {

// A test before the failure tells nothing about it.
bool WasTestedAfter(const control::v1::NodeEvidence& node,
                    const google::protobuf::Timestamp& failed_at) {
  const google::protobuf::Timestamp& tested_at = node.machine_tested_at();
  if (node.machine_test().state() != megascale::agent::v1::MachineTest::STATE_PASSED) return false;
  return std::make_pair(tested_at.seconds(), tested_at.nanos()) >
         std::make_pair(failed_at.seconds(), failed_at.nanos());
}

// Adds what the driver kept of a job that has ended: its machines may be gone.
void AddKept(const control::v1::Job& job, Findings* findings) {
  for (const control::v1::RankView& rank : job.evidence().ranks()) {
    const std::string& doing = rank.status().doing();
    if (rank.status().rank() != job.culprit().rank() || doing.empty()) continue;
    findings->evidence.push_back(absl::StrCat("rank ", rank.status().rank(),
                                              " reported before it: ", base::Printable(doing)));
  }
  for (const control::v1::NodeEvidence& node : job.evidence().nodes()) {
    if (!node.quarantine_evidence().empty()) {
      findings->evidence.push_back(absl::StrCat("node ", node.node_id(), " is quarantined: ",
                                                base::Printable(node.quarantine_evidence())));
    } else if (WasTestedAfter(node, job.evidence().ended_at())) {
      findings->excluded.push_back(
          absl::StrCat("node ", node.node_id(), ": its machine test passed"));
    }
  }
}

}  // namespace

std::string TooEarly(const control::v1::Job& job) {
  constexpr char kVerdict[] = "too early to say what limits the job: ";
  if (job.state() != control::v1::JOB_STATE_RUNNING) return "";
  if (!job.has_started_at()) return absl::StrCat(kVerdict, "no step has completed yet");
  // All by the driver's clock.
  const absl::Duration trained_for =
      absl::Seconds(job.submitted_age_seconds()) -
      absl::Seconds(job.started_at().seconds() - job.submitted_at().seconds());
  if (trained_for >= absl::Minutes(1)) return "";
  return absl::StrCat(kVerdict, "its first step was completed ",
                      ShortDuration(std::max(trained_for, absl::ZeroDuration())), " ago");
}

Diagnosis DiagnoseState(const control::v1::Job& job, const std::string& why_no_spans) {
  if (HasFailed(job)) {
    Diagnosis failure = DiagnoseFailure(job);
    AddKept(job, &failure.findings);
    return failure;
  }
  Diagnosis diagnosis;
  Findings& findings = diagnosis.findings;
  const bool has_ended = IsTerminal(job.state());
  findings.cause = has_ended ? "ended" : "unknown";
  if (has_ended) {
    findings.verdict = absl::StrCat("ended: ", StateLine(job));
  } else if (job.state() != control::v1::JOB_STATE_RUNNING) {
    findings.verdict = absl::StrCat("the job does not train now: it is ", StateLine(job));
  } else if (findings.verdict = TooEarly(job); findings.verdict.empty()) {
    findings.verdict =
        absl::StrCat("I do not know yet what limits the job: it is ", StateLine(job));
  }
  if (!why_no_spans.empty()) findings.evidence.push_back(why_no_spans);
  return diagnosis;
}

namespace {

struct UnreadMachine {
  const control::v1::NodeView* node = nullptr;
  std::vector<int> ranks;
};

// Returns the machines of the job none of whose ranks is known.
std::vector<UnreadMachine> UnreadMachines(const control::v1::Job& job,
                                          const control::v1::GetClusterResponse& cluster,
                                          const std::vector<bool>& is_known) {
  std::vector<UnreadMachine> unread;
  for (const control::v1::NodeView& node : cluster.nodes()) {
    UnreadMachine machine = {&node, {}};
    bool is_read = false;
    for (int rank = 0; rank < job.ranks_size(); ++rank) {
      if (job.ranks(rank).node_id() != node.node_id()) continue;
      machine.ranks.push_back(rank);
      is_read = is_read ||
                (rank < static_cast<int>(is_known.size()) && is_known[static_cast<size_t>(rank)]);
    }
    if (!machine.ranks.empty() && !is_read) unread.push_back(std::move(machine));
  }
  return unread;
}

}  // namespace

bool MaySoonBeSilent(const control::v1::Job& job, const control::v1::GetClusterResponse& cluster,
                     const std::vector<bool>& is_known) {
  int num_silent = 0;
  int num_overdue = 0;
  for (const UnreadMachine& machine : UnreadMachines(job, cluster, is_known)) {
    const double age = machine.node->heartbeat_age_seconds();
    if (age >= kSilentMachineSecondsMin) {
      ++num_silent;
    } else if (age >= kOverdueSecondsMin) {
      ++num_overdue;
    }
  }
  return num_overdue > 0 && num_silent <= 1;
}

std::optional<Diagnosis> DiagnoseSilence(const control::v1::Job& job,
                                         const control::v1::GetClusterResponse& cluster,
                                         const std::vector<bool>& is_known) {
  std::vector<UnreadMachine> machines = UnreadMachines(job, cluster, is_known);
  std::erase_if(machines, [](const UnreadMachine& machine) {
    return machine.node->heartbeat_age_seconds() < kSilentMachineSecondsMin;
  });
  if (machines.size() != 1) return std::nullopt;
  const auto& [silent, ranks] = machines[0];
  Diagnosis diagnosis;
  diagnosis.node = base::Printable(silent->node_id());
  Findings& findings = diagnosis.findings;
  findings.cause = "silent_machine";
  findings.verdict = absl::StrCat("silent: node ", diagnosis.node,
                                  "; its agent does not answer, so it is stopped, or the machine "
                                  "is, or the way to it is cut");
  findings.evidence.push_back(absl::StrFormat("node %s has not reported for %.1f s", diagnosis.node,
                                              silent->heartbeat_age_seconds()));
  findings.evidence.push_back(
      absl::StrCat("the spans of ranks ", absl::StrJoin(ranks, ", "), " on it cannot be read"));
  findings.done.push_back(
      "the driver moves the job once the machine is silent for its --node-timeout (default 5 s)");
  findings.advice.push_back(
      absl::StrCat("look at the machine ", diagnosis.node, " and at its agent: `megascale nodes`"));
  return diagnosis;
}

namespace {

const char* WordOf(control::v1::NumberWarning::Kind kind) {
  switch (kind) {
    case control::v1::NumberWarning::KIND_LOSS_JUMP:
      return "loss_jump";
    case control::v1::NumberWarning::KIND_GRADIENT_JUMP:
      return "gradient_jump";
    case control::v1::NumberWarning::KIND_NOT_FINITE:
      return "not_finite";
    case control::v1::NumberWarning::KIND_SLOWER:
      return "mfu_decline";
    default:
      return "number";
  }
}

}  // namespace

void AddNumbers(const control::v1::Job& job, Diagnosis* diagnosis) {
  Findings& findings = diagnosis->findings;
  for (const control::v1::NumberWarning& warning : job.number_warnings()) {
    const std::string text = base::Printable(warning.message(), 400);
    if (findings.cause == CauseWord(diagnose::SlowCause::kNone)) {
      findings.cause = WordOf(warning.kind());
      findings.verdict = absl::StrCat("numbers: ", text);
    } else {
      findings.evidence.push_back(text);
    }
  }
  if (!job.has_suspicion()) return;
  findings.done.push_back(absl::StrCat("the driver suspects: ", SuspicionText(job.suspicion())));
}

void AddReport(const control::v1::Job& job, absl::Span<const int> waiting, Diagnosis* diagnosis) {
  if (diagnosis->rank < 0) return AddReportOfAll(job, waiting, diagnosis);
  if (diagnosis->rank >= job.ranks_size()) return;
  const telemetry::v1::RankStatus& status = job.ranks(diagnosis->rank).status();
  Findings& findings = diagnosis->findings;
  if (!status.doing().empty()) {
    findings.evidence.push_back(absl::StrFormat("rank %d reports: %s; no progress for %.1f s",
                                                diagnosis->rank, base::Printable(status.doing()),
                                                status.progress_age_seconds()));
  }
  if (!telemetry::Saves(status)) return;
  if (!WaitsForStorage(status)) {
    if (status.alive_age_seconds() < diagnose::kSilentSecondsMin) {
      SaySaving(absl::StrCat("rank ", diagnosis->rank, " copies it"), &findings);
    }
    return;
  }
  SayStorage(job, absl::StrCat("rank ", diagnosis->rank, " on node ", diagnosis->node, " waits"),
             &findings);
}

}  // namespace megascale::cli
