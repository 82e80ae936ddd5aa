#include "controlplane/driver/service/suspect_watch.h"

#include <utility>

#include "runtime/base/clock.h"

namespace megascale::driver {

SuspectWatch::SuspectWatch(DriverLoop* loop, absl::Duration interval, PortsOf ports_of)
    : loop_(*loop),
      interval_(interval),
      ports_of_(std::move(ports_of)),
      triggers_(interval),
      thread_([this] { Run(); }) {}

SuspectWatch::~SuspectWatch() {
  stop_.Notify();
  thread_.join();
}

void SuspectWatch::Run() {
  while (!stop_.WaitFor(interval_)) {
    const auto view = loop_.View();
    if (!view.ok()) continue;
    for (const auto& triggered :
         triggers_.Look(**view, base::RealClock().Monotonic(), &slow_looks_)) {
      Examine(triggered);
    }
    slow_looks_.EndRound();
  }
}

// A job whose cause cannot be told is not suspected: `megascale diagnose` says what is known of it.
// A machine may be slow for a moment. So a slow rank is named, and may be evicted, once two looks
// have found its machine.
void SuspectWatch::Examine(const JobTriggers::Triggered& triggered) {
  const auto job = loop_.GetJob(triggered.job_id);
  if (!job.ok()) return;
  SlowPorts ports = ports_of_(triggered.job_id);
  const auto goes_on = [this](const auto&) { return !stop_.WaitFor(absl::ZeroDuration()); };
  ports.spans.emit = goes_on;
  ports.metrics.emit = goes_on;
  const bool is_stuck = triggered.verdict.reason == diagnose::TriggerReason::kStuck;
  auto suspicion =
      is_stuck ? FindSuspect(*job, triggered.sample, std::move(ports.spans))
               : FindSlowSuspect(*job, triggered.sample, triggered.verdict, std::move(ports));
  if (!suspicion.ok()) {
    // A look that could not read the spans judged nothing.
    if (!is_stuck && !absl::IsNotFound(suspicion.status())) slow_looks_.PassOver(job->job_id());
    return;
  }
  if (!is_stuck && !slow_looks_.IsConfirmed(
                       job->job_id(), {suspicion->node_id(), job->attempt(), job->last_step()})) {
    suspicion->set_rank(-1);
    suspicion->clear_node_id();
  }
  loop_.Suspect(triggered.job_id, *suspicion).IgnoreError();
}

}  // namespace megascale::driver
