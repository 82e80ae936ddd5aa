#include "controlplane/driver/shell/job_evidence.h"

#include <google/protobuf/util/json_util.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

std::string PathOf(const JobRecord& job) {
  return absl::StrCat(job.submitted().directory(), "/evidence.json");
}

// The nodes of the last attempt, and those of failures.
std::set<std::string> NodesConcerned(const JobRecord& job) {
  const std::vector<std::string> placed = NodesOf(job);
  std::set<std::string> nodes(placed.begin(), placed.end());
  for (const auto& failure : job.failures()) nodes.insert(failure.culprit().node_id());
  for (const auto& cause : job.causes()) nodes.insert(cause.node_id());
  if (job.has_culprit()) nodes.insert(job.culprit().node_id());
  nodes.erase("");
  return nodes;
}

}  // namespace

control::JobEvidence EvidenceOf(const DriverState& state, const JobRecord& job, int64_t last_step,
                                const std::vector<control::RankView>& ranks) {
  control::JobEvidence evidence;
  evidence.set_job_id(JobId(job));
  evidence.set_state(job.state());
  evidence.set_reason(job.reason());
  evidence.set_message(job.message());
  evidence.mutable_ended_at()->set_seconds(job.ended_unix_nanos() / 1'000'000'000);
  evidence.mutable_ended_at()->set_nanos(
      static_cast<int32_t>(job.ended_unix_nanos() % 1'000'000'000));
  evidence.set_attempt(job.attempt());
  evidence.set_last_step(last_step);
  if (job.has_culprit()) *evidence.mutable_culprit() = job.culprit();
  for (int i = 1; i < job.failures_size(); ++i) {
    *evidence.add_consequences() = job.failures(i).culprit();
  }
  *evidence.mutable_causes() = job.causes();
  *evidence.mutable_ranks() = {ranks.begin(), ranks.end()};
  for (const std::string& node_id : NodesConcerned(job)) {
    control::NodeEvidence* told = evidence.add_nodes();
    told->set_node_id(node_id);
    const NodeRecord* node = FindNode(state, node_id);
    if (node == nullptr) continue;
    told->set_alive(node->alive());
    told->set_hostname(node->hello().hostname());
    told->set_quarantine_evidence(node->quarantine().evidence());
    if (node->has_test()) *told->mutable_machine_test() = node->test().test();
  }
  return evidence;
}

bool HasEvidence(const JobRecord& job, JobFiles* files) { return files->Exists(PathOf(job)); }

absl::Status WriteEvidence(const JobRecord& job, const control::JobEvidence& evidence,
                           JobFiles* files) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(evidence, &text, options);
  if (!status.ok()) {  // a log line that is not UTF-8
    return absl::InternalError(absl::StrCat(PathOf(job), ": ", status.ToString()));
  }
  return files->WriteSoon(PathOf(job), text);
}

absl::StatusOr<control::JobEvidence> ReadEvidence(const JobRecord& job, JobFiles* files) {
  const std::string path = PathOf(job);
  if (!files->Exists(path)) return absl::NotFoundError(absl::StrCat(path, ": does not exist"));
  ASSIGN_OR_RETURN(const size_t size_bytes, files->Size(path));
  ASSIGN_OR_RETURN(const std::string text, files->ReadAt(path, 0, size_bytes));
  control::JobEvidence evidence;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // a newer version wrote it
  const auto status = google::protobuf::util::JsonStringToMessage(text, &evidence, options);
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", status.ToString(), "; ignored it"));
  }
  return evidence;
}

}  // namespace megascale::driver
