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
    for (const std::string& job_id : *ended) {
      int& count = tries[job_id];
      count = tries_[job_id];
      if (count >= kTriesMax || stop_.WaitFor(absl::ZeroDuration())) continue;
      count = Keep(job_id) ? kTriesMax : count + 1;
    }
    tries_ = std::move(tries);
  }
}

bool LastEvidenceWatch::Keep(const std::string& job_id) {
  const auto job = loop_.GetJob(job_id);
  if (!job.ok() || job->ranks_size() == 0) return false;
  if (RealJobFiles().Exists(LastEvidencePath(*job))) return true;
  auto [spans, evidence] = ports_of_(job_id);
  const absl::Duration deadline = base::RealClock().Monotonic() + kCollectionMax;
  const auto is_stopped = [this] { return stop_.WaitFor(absl::ZeroDuration()); };
  const CollectOptions options = {
      .should_stop = [&] { return is_stopped() || base::RealClock().Monotonic() >= deadline; }};
  const auto content = CollectLastEvidence(*job, std::move(spans), std::move(evidence), options);
  // The next driver collects what is left unread here.
  if (!content.ok() || is_stopped()) return false;
  const absl::Status written = RealJobFiles().WriteSoon(LastEvidencePath(*job), *content);
  if (!written.ok()) base::LogWarning(written.message());
  return written.ok();
}

}  // namespace megascale::driver
