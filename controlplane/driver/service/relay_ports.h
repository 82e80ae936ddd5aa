// What a relay reads from: the driver's view of a job, and its agents. Private to this folder.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "controlplane/driver/service/agent_streams.h"
#include "controlplane/driver/service/driver_loop.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

// Returns ports without a sink. `loop` and `agents` outlive them.
template <typename Ports>
Ports RelayPorts(DriverLoop* loop, AgentStreams* agents, const std::string& job_id,
                 absl::Duration fetch_timeout) {
  Ports ports;
  ports.job = [loop, job_id] { return loop->GetJob(job_id); };
  ports.cluster = [loop] { return loop->GetCluster(); };
  ports.fetch = [agents, fetch_timeout](const std::string& node_id, const auto& fetch) {
    return agents->Fetch(node_id, fetch, fetch_timeout);
  };
  if constexpr (requires { ports.now; }) {
    ports.now = [] { return base::RealClock().Monotonic(); };
  }
  return ports;
}

}  // namespace megascale::driver
