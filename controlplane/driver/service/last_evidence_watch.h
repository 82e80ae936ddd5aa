// Looks for jobs that have just ended, asks their agents what they keep of the last attempt, and
// writes it into the jobs' folders. It has its own thread, because the questions block. Private to
// this folder.
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
  // The watch does not ask for jobs that ended longer ago, because agents keep the last attempts of
  // only a few jobs.
  static constexpr absl::Duration kAgeMax = absl::Minutes(10);
  static constexpr int kTriesMax = 3;
  // After this time no further node is asked, because each node that does not answer costs seconds.
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
