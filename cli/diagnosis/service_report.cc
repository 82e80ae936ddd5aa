#include "cli/diagnosis/service_report.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/text/printable.h"

namespace megascale::cli {

bool IsSilence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

Diagnosis DiagnoseSilentDriver(const absl::Status& status, const std::string& job_id,
                               const std::string& address) {
  Diagnosis diagnosis;
  Findings& findings = diagnosis.findings;
  findings.cause = "silent_driver";
  findings.verdict = absl::StrCat("silent driver: it does not answer at ", address);
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
  const bool is_named =
      diagnosis->rank >= 0 || !diagnosis->node.empty() || !diagnosis->peer_node.empty();
  if (is_named || job.state() != control::v1::JOB_STATE_RUNNING) {
    findings.evidence.push_back(evidence);
    return;
  }
  findings.evidence.insert(findings.evidence.begin(),
                           {evidence, absl::StrCat("its steps: ", findings.verdict)});
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

}  // namespace megascale::cli
