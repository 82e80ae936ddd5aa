// The agent of one machine: runs what the driver desires and reports what is. A thin shell of
// processes, sockets, shared memory and one gRPC stream around AgentCore, which decides.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "controlplane/client/job_client.h"

namespace megascale::agent {

struct AgentOptions {
  std::string driver_address;  // "unix:PATH" or "HOST:PORT"
  int num_slots = 1;           // worker processes it may run; from 1
  std::string node_id;         // stable over restarts; empty: the host name
  std::string run_directory;   // owner-only, for sockets and the lock; made if missing
  std::string
      log_directory;  // empty: run_directory/logs. Holds JOB/attempt-2/rank-00003.0.log, host.0.log
  client::TlsFiles tls;   // needed for HOST:PORT unless `insecure`
  bool insecure = false;  // plain TCP; loopback addresses only
  // Address that tensor sockets between machines bind. Empty: that of the route to a driver on TCP;
  // with a driver on a Unix socket all agents are on one machine and use Unix sockets, too.
  std::string interface;
};

// Runs until SIGTERM or SIGINT (kills its children, returns OK) or until the driver says that this
// agent has no place. Survives the driver's absence for ever. Requires: called from the main thread
// while it is the only one (it forks a process keeper first). Errors: InvalidArgument - options;
// FailedPrecondition - another agent holds the run directory, or the driver refused (version,
// node); Aborted - a newer agent of this node id took over.
absl::Status RunAgent(const AgentOptions& options);

}  // namespace megascale::agent
