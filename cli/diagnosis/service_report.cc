#include "cli/diagnosis/service_report.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/calls/late_begin.h"

namespace megascale::cli {
namespace {

// Older calls tell nothing about what is slow now.
constexpr double kLateSecondsAgo = 60;

double SecondsAgo(int64_t nanos, const telemetry::v1::Evidence& evidence) {
  return (static_cast<double>(evidence.monotonic_nanos()) - static_cast<double>(nanos)) / 1e9;
}

// Adds the evidence. Returns whether it is to be the verdict: the job trains, and nobody is named.
bool TakesVerdict(const control::v1::Job& job, const std::string& evidence, Diagnosis* diagnosis) {
  Findings& findings = diagnosis->findings;
  const bool names_somebody =
      diagnosis->rank >= 0 || !diagnosis->node.empty() || !diagnosis->peer_node.empty();
  if (names_somebody || job.state() != control::v1::JOB_STATE_RUNNING) {
    findings.evidence.push_back(evidence);
    return false;
  }
  findings.evidence.insert(findings.evidence.begin(),
                           {evidence, absl::StrCat("its steps: ", findings.verdict)});
  return true;
}

}  // namespace

bool IsSilence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

Diagnosis DiagnoseSilentDriver(const absl::Status& status, const std::string& job_id,
                               const std::string& address) {
  Diagnosis diagnosis;
  Findings& findings = diagnosis.findings;
  findings.cause = "silent_driver";
  findings.verdict = absl::StrCat("silent driver: the driver does not answer at ", address,
                                  ", or this client cannot reach it with these certificates");
  findings.evidence.push_back(base::Printable(status.message(), 500));
  findings.cost.push_back("no failure of a rank is noticed, and no job starts, until it answers");
  findings.done.push_back("workers that train go on without it");
  findings.advice.push_back(
      "look whether its process runs or is stopped; start it again if it does not, and it takes "
      "over the same attempt");
  findings.advice.push_back(absl::StrCat("then repeat `megascale diagnose ", job_id, "`"));
  return diagnosis;
}

void AddStorageFailure(const control::v1::Job& job, Diagnosis* diagnosis) {
  if (!job.has_storage_failure() || diagnosis->findings.cause == "storage") return;
  const control::v1::StorageFailure& failure = job.storage_failure();
  const std::string node = base::Printable(failure.node_id());
  Findings& findings = diagnosis->findings;
  const std::string evidence =
      absl::StrFormat("node %s could not store a checkpoint for %.0f s: %s", node,
                      failure.seconds(), base::Printable(failure.message(), 300));
  if (!TakesVerdict(job, evidence, diagnosis)) return;
  findings.cause = "storage";
  findings.verdict =
      absl::StrCat("storage: node ", node, " cannot store checkpoints; the job trains without");
  findings.cost.push_back(
      absl::StrCat("a failure now takes the job back to the checkpoint of step ",
                   job.last_checkpoint().step(), "; it has completed step ", job.last_step()));
  findings.advice.push_back(
      absl::StrCat("free or mend the storage of ", node, "; it is tried again by itself"));
  diagnosis->node = node;
}

void AddSilentKeeper(const control::v1::Job& job, Diagnosis* diagnosis) {
  if (!job.has_silent_keeper()) return;
  const std::string node = base::Printable(job.silent_keeper().node_id());
  Findings& findings = diagnosis->findings;
  const std::string evidence =
      absl::StrFormat("the process keeper of node %s has not answered its agent for %.0f s", node,
                      job.silent_keeper().seconds());
  if (!TakesVerdict(job, evidence, diagnosis)) return;
  findings.cause = "silent_keeper";
  findings.verdict = absl::StrCat("silent process keeper: node ", node,
                                  " starts and reaps no process; the job trains on");
  findings.cost.push_back(absl::StrCat("a process that ends on ", node,
                                       " is not noticed, and none is started there, until the "
                                       "keeper answers"));
  findings.advice.push_back(
      absl::StrCat("look on ", node, " whether the process megascale-keep is stopped"));
  findings.advice.push_back(
      absl::StrCat("or move the job off its machine: `megascale evict ", node, "`"));
  diagnosis->node = node;
}

bool LeavesOpenWhoIsLate(const Diagnosis& diagnosis) {
  return diagnosis.rank < 0 && diagnosis.findings.cause == "slow_collective";
}

void AddLateRank(absl::Span<const control::v1::StreamEvidenceResponse> responses,
                 const std::string& job_id, Diagnosis* diagnosis) {
  std::vector<diagnose::BegunCall> calls;
  std::map<std::string, int> machines;
  std::map<int, std::string> node_of;
  for (const control::v1::StreamEvidenceResponse& response : responses) {
    const auto number = static_cast<int>(machines.size());
    const int machine = machines.try_emplace(response.node_id(), number).first->second;
    node_of[response.rank()] = response.node_id();
    const telemetry::v1::Evidence& evidence = response.evidence();
    for (const telemetry::v1::ExchangeState& state : evidence.completed()) {
      const bool is_message = state.peer() >= 0;
      if (is_message || SecondsAgo(state.begin_nanos(), evidence) > kLateSecondsAgo) continue;
      calls.push_back({.rank = response.rank(),
                       .machine = machine,
                       .group = state.group(),
                       .sequence = state.sequence(),
                       .instruction = state.instruction(),
                       .begin_nanos = state.begin_nanos()});
    }
  }
  const diagnose::LateRank late = diagnose::FindLateRank(calls);
  if (late.rank < 0) return;
  diagnosis->rank = late.rank;
  diagnosis->node = base::Printable(node_of[late.rank]);
  Findings& findings = diagnosis->findings;
  findings.evidence.insert(
      findings.evidence.begin(),
      absl::StrFormat("it began %d of its %d newest collectives later than a rank of its machine, "
                      "by %.0f ms on the mean",
                      late.num_late, late.num_calls, 1e3 * late.seconds));
  findings.evidence.push_back(absl::StrCat("by spans alone: ", findings.verdict));
  findings.cause = CauseWord(diagnose::SlowCause::kLateWorker);
  findings.verdict = absl::StrCat("late in exchanges: rank ", late.rank, " (node ", diagnosis->node,
                                  "); it begins collectives after their other "
                                  "members, which wait for it");
  findings.advice = {
      absl::StrCat("look at the rank's process and its part of the network: `megascale logs ",
                   base::Printable(job_id), " --rank ", late.rank, "`")};
}

}  // namespace megascale::cli
