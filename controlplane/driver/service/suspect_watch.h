// Looks for jobs that stand still, asks their agents who is the cause, and tells the driver's loop.
// A thread of its own, because the questions block. Private to this folder.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/driver/service/driver_loop.h"
#include "runtime/base/stop_signal.h"

namespace megascale::driver {

class SuspectWatch {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(2);
  // A job whose cause was not found is examined again after this time. Source: Mycroft, 4.2.
  static constexpr absl::Duration kAgain = absl::Seconds(10);

  // `ports_of`: the sources of a job's spans. `loop` outlives the watch.
  using PortsOf = std::function<SpanStreamPorts(const std::string& job_id)>;
  SuspectWatch(DriverLoop* loop, PortsOf ports_of);
  ~SuspectWatch();

 private:
  void Run();
  void Examine(const std::string& job_id);

  DriverLoop& loop_;
  const PortsOf ports_of_;
  std::map<std::string, absl::Duration> examined_;  // by job: when
  base::StopSignal stop_;
  std::thread thread_;
};

}  // namespace megascale::driver
