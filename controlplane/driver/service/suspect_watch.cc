#include "controlplane/driver/service/suspect_watch.h"

#include <utility>

#include "controlplane/driver/relay/suspect.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

SuspectWatch::SuspectWatch(DriverLoop* loop, PortsOf ports_of)
    : loop_(*loop), ports_of_(std::move(ports_of)), thread_([this] { Run(); }) {}

SuspectWatch::~SuspectWatch() {
  stop_.Notify();
  thread_.join();
}

void SuspectWatch::Run() {
  while (!stop_.WaitFor(kInterval)) {
    const auto stalled = loop_.StalledJobs();
    if (!stalled.ok()) continue;
    const absl::Duration now = base::RealClock().Monotonic();
    std::erase_if(examined_, [&](const auto& entry) { return now - entry.second >= kAgain; });
    for (const std::string& job_id : *stalled) {
      if (examined_.try_emplace(job_id, now).second) Examine(job_id);
    }
  }
}

// A job whose cause cannot be told is not suspected: `megascale diagnose` says what is known of it.
void SuspectWatch::Examine(const std::string& job_id) {
  const auto job = loop_.GetJob(job_id);
  if (!job.ok()) return;
  SpanStreamPorts ports = ports_of_(job_id);
  ports.emit = [this](const auto&) { return !stop_.WaitFor(absl::ZeroDuration()); };
  const auto suspicion = FindSuspect(*job, std::move(ports));
  if (!suspicion.ok()) return;
  loop_.Suspect(job_id, *suspicion).IgnoreError();
}

}  // namespace megascale::driver
