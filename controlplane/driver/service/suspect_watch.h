// Looks at the jobs that train. If a job stands still or is slow, reads from its agents which rank
// is the cause, and tells the driver's loop. It has its own thread, because the questions block.
// Private to this folder.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "controlplane/driver/relay/suspect.h"
#include "controlplane/driver/service/driver_loop.h"
#include "controlplane/driver/shell/job_triggers.h"
#include "runtime/base/stop_signal.h"
#include "runtime/diagnose/sampling/slow_looks.h"

namespace megascale::driver {

class SuspectWatch {
 public:
  // `interval`: how often to look. `ports_of`: the sources of a job's spans and metrics. `loop`
  // outlives the watch.
  using PortsOf = std::function<SlowPorts(const std::string& job_id)>;
  SuspectWatch(DriverLoop* loop, absl::Duration interval, PortsOf ports_of);
  ~SuspectWatch();

 private:
  void Run();
  void Examine(const JobTriggers::Triggered& triggered);

  DriverLoop& loop_;
  const absl::Duration interval_;
  const PortsOf ports_of_;
  JobTriggers triggers_;
  diagnose::SlowLooks slow_looks_;
  base::StopSignal stop_;
  std::thread thread_;
};

}  // namespace megascale::driver
