// The agent of one machine: runs what the driver desires and reports what is. A thin shell of
// processes, sockets, shared memory and one gRPC stream around AgentCore, which decides.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controlplane/agent/store_forwarder.h"
#include "controlplane/security/tls_files.h"

namespace megascale::agent {

struct AgentOptions {
  std::string driver_address;  // "unix:PATH" or "HOST:PORT"
  int num_slots = 1;           // worker processes it may run; from 1
  std::string node_id;         // stable over restarts; empty: the host name
  std::string run_directory;   // owner-only, for sockets and the lock; made if missing
  std::string
      log_directory;  // empty: run_directory/logs. Holds JOB/attempt-2/rank-00003.0.log, host.0.log
  security::TlsFiles tls;  // needed for HOST:PORT unless `insecure`
  bool insecure = false;   // plain TCP; loopback addresses only
  // Address that tensor sockets between machines bind. Empty: that of the route to a driver on TCP;
  // with a driver on a Unix socket all agents are on one machine and use Unix sockets, too.
  std::string interface;
  // How long SIGTERM waits for the jobs to leave; from 0.
  absl::Duration drain_timeout = absl::Minutes(5);
  StoreAccess store;  // of jobs whose store is a Redis server
};

// Runs until it is asked to end (returns OK) or until the driver says that this agent has no place.
// SIGTERM drains it: the driver is told, jobs make a checkpoint and leave, and it ends when nothing
// of them is left, or after the drain timeout. A second SIGTERM, or SIGINT, kills its children and
// ends it at once. Survives the driver's absence for ever. Requires: called from the main thread
// while it is the only one (it forks a process keeper first). Errors: InvalidArgument - options;
// FailedPrecondition - another agent holds the run directory, or the driver refused (version,
// node); Unauthenticated - at the start, the driver
// refuses this agent's certificate or the agent the driver's; Aborted - a newer agent of this node
// id took over.
absl::Status RunAgent(const AgentOptions& options);

}  // namespace megascale::agent
