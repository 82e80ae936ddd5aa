// The part of driver_core.h that checks requests before they become events.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/driver_core.h"
#include "runtime/base/status.h"
#include "runtime/base/text/nearest_name.h"
#include "runtime/job/same_job.h"

namespace megascale::driver {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace {

// Limits of a report, which stays in the log and in every answer about the job.
constexpr size_t kVerdictBytesMax = 500;
constexpr size_t kEvidenceBytesMax = 1000;
constexpr int kEvidenceLinesMax = 16;
constexpr absl::Duration kReportInterval = absl::Minutes(1);
constexpr absl::Duration kOtherReportInterval = absl::Seconds(5);  // that names another node

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
  return absl::ResourceExhaustedError(
      absl::StrCat("the driver holds ", num_open,
                   " jobs that have not ended, which is its most; wait for some of them, or cancel "
                   "some (`megascale list`)"));
}

absl::Status CheckLine(const std::string& name, const std::string& line, size_t bytes_max) {
  const bool is_printable = std::none_of(line.begin(), line.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (is_printable && line.size() <= bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected one line of at most ", bytes_max, " bytes"));
}

absl::Status CheckReportTexts(const control::Suspicion& report) {
  RETURN_IF_ERROR(CheckLine("verdict", report.verdict(), kVerdictBytesMax));
  if (report.verdict().empty()) {
    return absl::InvalidArgumentError("verdict: is empty; expected what is wrong, in one line");
  }
  if (report.evidence_size() > kEvidenceLinesMax) {
    return absl::InvalidArgumentError(absl::StrCat("evidence: has ", report.evidence_size(),
                                                   " lines; expected at most ", kEvidenceLinesMax));
  }
  for (const std::string& line : report.evidence()) {
    RETURN_IF_ERROR(CheckLine("evidence", line, kEvidenceBytesMax));
  }
  return absl::OkStatus();
}

// A client's clock may be ahead; nothing begins after it is reported.
absl::Status BoundBegin(absl::Time now, control::Suspicion* report) {
  if (!report->has_began_at()) return absl::OkStatus();
  const google::protobuf::Timestamp& began = report->began_at();
  if (began.seconds() < 0 || began.nanos() < 0 || began.nanos() >= 1'000'000'000) {
    return absl::InvalidArgumentError("began_at: expected a time since 1970");
  }
  const int64_t now_seconds = std::max<int64_t>(0, absl::ToUnixSeconds(now));
  if (began.seconds() < now_seconds) return absl::OkStatus();
  report->mutable_began_at()->set_seconds(now_seconds);
  report->mutable_began_at()->set_nanos(0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> IsNewSubmit(const IndexedState& state, const pb::JobSubmitted& submit) {
  const JobRecord* job = state.Find(submit.job_id());
  if (job == nullptr) {
    RETURN_IF_ERROR(CheckRoom(state.index()));
    return true;
  }
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

absl::StatusOr<bool> IsNewCancel(const IndexedState& state, absl::string_view job_id) {
  const JobRecord* job = state.Find(job_id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job ", job_id, ": no such job"));
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
  return node->evicted() || node->has_quarantine() ||
         std::any_of(jobs.begin(), jobs.end(), [&](const JobRecord& job) {
           return std::any_of(job.refusing().begin(), job.refusing().end(),
                              [&](const auto& entry) { return entry.node_id() == node_id; });
         });
}

absl::StatusOr<bool> IsNewSpareSet(const DriverState& state, const pb::NodeSpareSet& spare_set) {
  ASSIGN_OR_RETURN(const NodeRecord* node, RequireNode(state, spare_set.node_id()));
  return node->spare() != spare_set.spare();
}

absl::StatusOr<bool> IsNewReport(const IndexedState& state, absl::Time now,
                                 pb::SuspectFound* found) {
  control::Suspicion* report = found->mutable_suspicion();
  RETURN_IF_ERROR(CheckReportTexts(*report));
  RETURN_IF_ERROR(BoundBegin(now, report));
  const JobRecord* job = state.Find(found->job_id());
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("job ", found->job_id(), ": no such job"));
  }
  if (job->state() != control::JOB_STATE_RUNNING || job->attempt() != report->attempt()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", found->job_id(), ": is in attempt ", job->attempt(), " (",
                     job->reason(), "); expected a report about a running attempt, found ",
                     report->attempt(), "; look at its machines again"));
  }
  const auto at =
      std::find_if(job->placements().begin(), job->placements().end(),
                   [&](const auto& placement) { return placement.node_id() == report->node_id(); });
  if (report->node_id().empty() || at == job->placements().end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", found->job_id(), ": has no rank on the reported node; ",
                     "`megascale status ", found->job_id(), "` shows its nodes"));
  }
  report->set_rank(static_cast<int32_t>(at - job->placements().begin()));
  report->set_kind(control::Suspicion::KIND_DIFFERS);
  return MayReplaceSuspicion(*job, *report, now);
}

bool MayReplaceSuspicion(const JobRecord& job, const control::Suspicion& found, absl::Time now) {
  if (HasStallSuspicion(job)) return false;
  const control::Suspicion& known = job.suspicion();
  const absl::Time confirmed = absl::FromUnixSeconds(known.confirmed_at().seconds());
  const absl::Duration interval =
      known.node_id() == found.node_id() ? kReportInterval : kOtherReportInterval;
  return !job.has_suspicion() || now - confirmed >= interval || now < confirmed;
}

}  // namespace megascale::driver
