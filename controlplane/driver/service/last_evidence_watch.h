// Looks for jobs that have just ended, asks their agents for what they keep of the last attempt,
// and writes it into the jobs' folders. A thread of its own, because the questions block. Private
// to this folder.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/driver/service/driver_loop.h"
#include "proto/control.pb.h"
#include "runtime/base/stop_signal.h"

namespace megascale::driver {

class LastEvidenceWatch {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  // Agents keep the last attempts of a few jobs: older jobs are not asked for.
  static constexpr absl::Duration kAgeMax = absl::Minutes(10);
  static constexpr int kTriesMax = 3;
  // Nodes that do not answer take seconds each: no further one is asked after this time.
  static constexpr absl::Duration kCollectionMax = absl::Seconds(30);

  using PortsOf =
      std::function<std::pair<SpanStreamPorts, EvidenceStreamPorts>(const std::string& job_id)>;
  // `loop` outlives the watch.
  LastEvidenceWatch(DriverLoop* loop, PortsOf ports_of);
  ~LastEvidenceWatch();

 private:
  void Run();
  // Returns whether the file is there.
  bool Keep(const megascale::control::v1::Job& job);

  DriverLoop& loop_;
  const PortsOf ports_of_;
  std::map<std::string, int> tries_;  // by job that ended within kAgeMax
  base::StopSignal stop_;
  std::thread thread_;
};

}  // namespace megascale::driver
