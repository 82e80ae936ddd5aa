// The part of driver_core.h that checks requests before they become events.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/exchanges/failed_links.h"
#include "runtime/base/status.h"
#include "runtime/base/text/nearest_name.h"
#include "runtime/job/same_job.h"

namespace megascale::driver {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace {

absl::StatusOr<const NodeRecord*> RequireNode(const DriverState& state, absl::string_view node_id) {
  if (const NodeRecord* node = FindNode(state, node_id); node != nullptr) return node;
  std::vector<std::string> known;
  for (const NodeRecord& node : state.nodes()) known.push_back(node.hello().node_id());
  const std::string nearest = base::NearestName(node_id, known);
  return absl::NotFoundError(
      absl::StrCat("node ", node_id, ": there is no such node",
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                   nearest.empty() ? "; `megascale status` shows all nodes" : ""));
}

absl::Status CheckRoom(const JobIndex& index) {
  const size_t num_open = index.open().size();
  if (num_open < size_t{kOpenJobsMax}) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the driver holds ", num_open,
      " jobs that have not ended, which is the maximum; wait until some end, or cancel "
      "some (`megascale list`)"));
}

}  // namespace

bool WasRefusedAtStart(const JobRecord& job) {
  return IsTerminal(job) && !job.has_data() && job.attempt() > 0 &&
         job.culprit().failure_class() == megascale::telemetry::v1::FAILURE_CLASS_REFUSED;
}

absl::StatusOr<bool> IsNewSubmit(const IndexedState& state, const pb::JobSubmitted& submit) {
  const JobRecord* job = state.Find(submit.job_id());
  if (job == nullptr) {
    RETURN_IF_ERROR(CheckRoom(state.index()));
    return true;
  }
  if (submit.take_over() && WasRefusedAtStart(*job)) return true;
  const auto& known = job->submitted();
  const auto as_set = [](const auto& names) {
    return std::set<std::string>(names.begin(), names.end());
  };
  if (job::IsSameJob(known.spec(), submit.spec()) &&
      known.from_checkpoint() == submit.from_checkpoint() &&
      as_set(known.allow_changed()) == as_set(submit.allow_changed())) {
    return false;
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "job id ", submit.job_id(),
      ": is taken by a job with another specification; choose another job id, or leave it out"));
}

absl::Status NoSuchJob(absl::string_view job_id) {
  return absl::NotFoundError(
      absl::StrCat("job ", job_id, ": there is no such job; `megascale list` shows all jobs"));
}

absl::StatusOr<bool> IsNewCancel(const IndexedState& state, absl::string_view job_id) {
  const JobRecord* job = state.Find(job_id);
  if (job == nullptr) return NoSuchJob(job_id);
  if (!IsTerminal(*job)) return !job->has_cancel();
  if (job->state() == control::JOB_STATE_CANCELLED) return false;
  return absl::FailedPreconditionError(absl::StrCat("job ", job_id, ": has ended already (",
                                                    job->reason(), ": ", job->message(),
                                                    "); there is nothing to cancel"));
}

absl::StatusOr<bool> IsNewEviction(const DriverState& state, const pb::NodeEvicted& evicted) {
  ASSIGN_OR_RETURN(const NodeRecord* node, RequireNode(state, evicted.node_id()));
  return !node->evicted() || node->evicted_why() != evicted.why();
}

absl::StatusOr<bool> IsNewUncordon(const DriverState& state, absl::string_view node_id) {
  ASSIGN_OR_RETURN(const NodeRecord* node, RequireNode(state, node_id));
  const auto& jobs = state.jobs();
  return node->evicted() || node->has_quarantine() || node->unnamed() ||
         HasFailedLink(state, node_id) ||
         std::any_of(jobs.begin(), jobs.end(), [&](const JobRecord& job) {
           return std::any_of(job.refusing().begin(), job.refusing().end(),
                              [&](const auto& entry) { return entry.node_id() == node_id; });
         });
}

absl::StatusOr<bool> IsNewSpareSet(const DriverState& state, const pb::NodeSpareSet& spare_set) {
  ASSIGN_OR_RETURN(const NodeRecord* node, RequireNode(state, spare_set.node_id()));
  return node->spare() != spare_set.spare();
}

}  // namespace megascale::driver
