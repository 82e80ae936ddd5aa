#include "controlplane/driver/service/last_evidence_watch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/relay/last_evidence.h"
#include "controlplane/driver/storage/job_files.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace megascale::driver {

LastEvidenceWatch::LastEvidenceWatch(DriverLoop* loop, PortsOf ports_of)
    : loop_(*loop), ports_of_(std::move(ports_of)), thread_([this] { Run(); }) {}

LastEvidenceWatch::~LastEvidenceWatch() {
  stop_.Notify();
  thread_.join();
}

void LastEvidenceWatch::Run() {
  while (!stop_.WaitFor(kInterval)) {
    const auto ended = loop_.EndedJobs(kAgeMax);
    if (!ended.ok()) continue;
    std::map<std::string, int> tries;
    for (const std::string& job_id : *ended) tries[job_id] = tries_[job_id];
    tries_ = std::move(tries);
    for (const std::string& job_id : *ended) {
      int& count = tries_[job_id];
      if (count >= kTriesMax || stop_.WaitFor(absl::ZeroDuration())) continue;
      const auto job = loop_.GetJob(job_id);
      count = job.ok() && Keep(*job) ? kTriesMax : count + 1;
      // One in a round: a job that fails meanwhile does not wait for many that succeeded.
      if (job.ok() && job->state() == megascale::control::v1::JOB_STATE_SUCCEEDED) break;
    }
  }
}

bool LastEvidenceWatch::Keep(const megascale::control::v1::Job& job) {
  if (job.ranks_size() == 0) return false;
  if (RealJobFiles().Exists(LastEvidencePath(job))) return true;
  auto [spans, evidence] = ports_of_(job.job_id());
  const absl::Duration deadline = base::RealClock().Monotonic() + kCollectionMax;
  const auto is_stopped = [this] { return stop_.WaitFor(absl::ZeroDuration()); };
  const CollectOptions options = {
      .should_stop = [&] { return is_stopped() || base::RealClock().Monotonic() >= deadline; }};
  const auto content = CollectLastEvidence(job, std::move(spans), std::move(evidence), options);
  // The next driver collects what is left unread here.
  if (!content.ok() || is_stopped()) return false;
  const absl::Status written = RealJobFiles().WriteSoon(LastEvidencePath(job), *content);
  if (!written.ok()) base::LogWarning(written.message());
  return written.ok();
}

}  // namespace megascale::driver
