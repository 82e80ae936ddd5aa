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
  while (!stop_.WaitFor(JobTriggers::kInterval)) {
    const auto view = loop_.View();
    if (!view.ok()) continue;
    std::map<std::string, std::string> named;
    for (const auto& triggered : triggers_.Look(**view, base::RealClock().Monotonic())) {
      named[triggered.job_id] = Examine(triggered);
    }
    named_ = std::move(named);
  }
}

// A job whose cause cannot be told is not suspected: `megascale diagnose` says what is known of it.
// A machine may be slow for a moment. So a slow rank is named, and may be evicted, once two looks
// in a row have found its node.
std::string SuspectWatch::Examine(const JobTriggers::Triggered& triggered) {
  const auto job = loop_.GetJob(triggered.job_id);
  if (!job.ok()) return "";
  SpanStreamPorts ports = ports_of_(triggered.job_id);
  ports.emit = [this](const auto&) { return !stop_.WaitFor(absl::ZeroDuration()); };
  const bool is_stuck = triggered.verdict.reason == diagnose::TriggerReason::kStuck;
  auto suspicion =
      is_stuck ? FindSuspect(*job, triggered.sample, std::move(ports))
               : FindSlowSuspect(*job, triggered.sample, triggered.verdict, std::move(ports));
  if (!suspicion.ok()) return "";
  std::string node_id = is_stuck ? "" : suspicion->node_id();
  if (!node_id.empty() && named_[triggered.job_id] != node_id) {
    suspicion->set_rank(-1);
    suspicion->clear_node_id();
  }
  loop_.Suspect(triggered.job_id, *suspicion).IgnoreError();
  return node_id;
}

}  // namespace megascale::driver
