// The part of driver_core.h that handles suspicions: which reports become events, and what follows
// from a suspect.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/transition.h"
#include "runtime/base/status.h"

namespace megascale::driver {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

namespace {

// A job evicts at most this many suspects an hour: diagnosis may be wrong.
constexpr int kEvictionsMax = 2;       // of a job, within kEvictionPeriod
constexpr int kEvictionsOfAllMax = 4;  // of all jobs: what hits many is no machine's fault
constexpr int64_t kReportLife = int64_t{20 * 60} * 1'000'000'000;
constexpr int64_t kEvictionPeriod = int64_t{3600} * 1'000'000'000;

// Limits of a report, which stays in the log and in every answer about the job.
constexpr size_t kVerdictBytesMax = 500;
constexpr size_t kEvidenceBytesMax = 1000;
constexpr int kEvidenceLinesMax = 16;
constexpr absl::Duration kReportInterval = absl::Minutes(1);
constexpr absl::Duration kOtherReportInterval = absl::Seconds(5);  // that names another node

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

absl::StatusOr<bool> IsNewReport(const IndexedState& state, absl::Time now,
                                 pb::SuspectFound* found) {
  control::Suspicion* report = found->mutable_suspicion();
  RETURN_IF_ERROR(CheckReportTexts(*report));
  RETURN_IF_ERROR(BoundBegin(now, report));
  const JobRecord* job = state.Find(found->job_id());
  if (job == nullptr) return NoSuchJob(found->job_id());
  if (job->state() != control::JOB_STATE_RUNNING || job->attempt() != report->attempt()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", found->job_id(), ": is in attempt ", job->attempt(), " (", job->reason(),
        "), and the report is about attempt ", report->attempt(),
        "; only an attempt that trains now can be reported: examine its machines again"));
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

// Keeps when a machine was reported first, and the earliest time at which its fault began, if this
// report confirms the one before: a later report sees less of the past.
void Transition::KeepSuspicion(const control::Suspicion& suspicion, JobRecord* job) {
  const control::Suspicion before = job->suspicion();
  control::Suspicion* kept = job->mutable_suspicion();
  *kept = suspicion;
  Stamp(kept->mutable_since());
  if (IsOfStall(suspicion)) return;
  *kept->mutable_confirmed_at() = kept->since();
  const bool is_confirmed =
      before.kind() == suspicion.kind() && before.node_id() == suspicion.node_id();
  if (!is_confirmed) return;
  *kept->mutable_since() = before.since();
  const bool began_before =
      before.has_began_at() &&
      (!kept->has_began_at() || before.began_at().seconds() < kept->began_at().seconds());
  if (began_before) *kept->mutable_began_at() = before.began_at();
}

// A suspicion that the driver found, because the job stands still, stays until the attempt makes
// progress or ends. One that was reported, or found in a slow job, gives way to it, and to a newer
// one. A rank is blamed only on the machine that holds it.
bool Transition::OnSuspectFound(const pb::SuspectFound& found) {
  const control::Suspicion& suspicion = found.suspicion();
  JobRecord* job = Current(found.job_id(), suspicion.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_RUN || HasStallSuspicion(*job) ||
      job->state() != control::JOB_STATE_RUNNING) {
    return false;
  }
  if (suspicion.rank() >= 0 && NodeOfRank(*job, suspicion.rank()) != suspicion.node_id()) {
    return false;
  }
  KeepSuspicion(suspicion, job);
  control::Suspicion* kept = job->mutable_suspicion();
  if (job->submitted().spec().fault().on_suspect() != megascale::job::v1::ON_SUSPECT_EVICT) {
    kept->set_action("told: fault.on_suspect is not evict");
    return true;
  }
  if (const std::string why = WhySuspectStays(job); !why.empty()) {
    kept->set_action(absl::StrCat("told, and not evicted: ", why));
    return true;
  }
  job->add_evictions(event_.time_unix_nanos());
  kept->set_action(absl::StrCat("evicted node ", suspicion.node_id()));
  // A job that trains can make a checkpoint before it leaves; one that stands still cannot.
  if (IsOfStall(suspicion)) {
    pb::Failure failure;
    failure.mutable_culprit()->set_node_id(suspicion.node_id());
    failure.mutable_culprit()->set_rank(suspicion.rank());
    failure.mutable_culprit()->set_failure_class(telemetry::FAILURE_CLASS_HUNG);
    failure.mutable_culprit()->set_evidence(suspicion.verdict());
    Fail(job, std::move(failure));
  }
  Quarantine(suspicion.node_id(),
             absl::StrCat("suspected by job ", JobId(*job), ": ", suspicion.verdict()));
  return true;
}

// A report says nothing about now once it is old.
void Transition::EndSuspicion(JobRecord* job) {
  const control::Suspicion& suspicion = job->suspicion();
  const int64_t age = event_.time_unix_nanos() - suspicion.confirmed_at().seconds() * 1'000'000'000;
  if (!IsOfStall(suspicion) && age < kReportLife) return;
  job->clear_suspicion();
}

std::string Transition::WhySuspectStays(JobRecord* job) const {
  const control::Suspicion& suspicion = job->suspicion();
  if (suspicion.rank() < 0) return "no rank is named";
  std::vector<int64_t> recent;
  for (const int64_t time : job->evictions()) {
    if (event_.time_unix_nanos() - time < kEvictionPeriod) recent.push_back(time);
  }
  job->mutable_evictions()->Assign(recent.begin(), recent.end());
  if (static_cast<int>(recent.size()) >= kEvictionsMax) {
    return absl::StrCat("the job had ", recent.size(), " evictions within an hour");
  }
  int of_all = 0;
  for (const JobRecord& other : state_.jobs()) {
    for (const int64_t time : other.evictions()) {
      of_all += event_.time_unix_nanos() - time < kEvictionPeriod ? 1 : 0;
    }
  }
  if (of_all >= kEvictionsOfAllMax) {
    return absl::StrCat("all jobs together had ", of_all, " evictions within an hour");
  }
  if (!HasRoomWithout(state_, *job, {suspicion.node_id()})) {
    return "the other machines have too few free slots for the job";
  }
  return "";
}

}  // namespace megascale::driver
