// The agent of one machine: brings the machine to the desired state and reports the actual state. A
// thin shell of processes, sockets, shared memory and one gRPC stream around AgentCore, which
// decides.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controlplane/agent/service/store_forwarder.h"
#include "controlplane/protocol/protocol.h"
#include "controlplane/security/tls_files.h"
#include "runtime/base/frame.h"
#include "runtime/telemetry/gpu_metrics.h"

namespace megascale::agent {

// A host process gets the snapshot memory of each local rank as a descriptor in one frame.
inline constexpr int kSlotsMax = protocol::kSlotsMax;
static_assert(kSlotsMax + 8 <= static_cast<int>(base::kFrameFdsMax));

struct AgentOptions {
  std::string driver_address;  // "unix:PATH" or "HOST:PORT"
  int num_slots = 1;           // maximum number of worker processes; 1 to kSlotsMax
  std::string node_id;         // stable over restarts; empty: the host name
  std::string run_directory;   // owner-only, for sockets and the lock; created if missing
  // Keeps the agent's key over reboots of the machine (agent_key.h); created if missing. Empty:
  // run_directory.
  std::string state_directory;
  // Holds JOB/attempt-2/rank-00003.0.log, host.0.log. Empty: run_directory/logs.
  std::string log_directory;
  security::TlsFiles tls;  // needed for HOST:PORT unless `insecure`
  bool insecure = false;   // plain TCP; loopback addresses only
  // Address that tensor sockets between machines bind. Empty: the local address of the route to a
  // driver on TCP. With a driver on a Unix socket all agents are on one machine, and tensor sockets
  // are Unix sockets, too.
  std::string interface;
  // How long SIGTERM waits for the jobs to leave; >= 0.
  absl::Duration drain_timeout = absl::Minutes(5);
  StoreAccess store;  // for jobs whose store is a Redis server
  // For the metrics of the machine; empty: it has no GPUs.
  telemetry::ReadGpus read_gpus;
};

// Runs the agent until a signal ends it (returns OK) or the driver refuses it for good.
// SIGTERM drains the agent: the agent tells the driver, the jobs make a checkpoint and leave, and
// the agent ends when they have left, or after the drain timeout. A second SIGTERM, or SIGINT,
// kills the agent's children and ends the agent at once. While the driver cannot be reached, the
// agent keeps its jobs running and keeps reconnecting; while another agent holds the node id, it
// logs that and keeps asking.
// Requires: called from the main thread while no other thread exists (it forks a process keeper
// first). Errors: InvalidArgument - options; FailedPrecondition - another agent holds the run
// directory or the state directory, or the driver speaks another version; DataLoss - the key in the
// state directory cannot be read; Unauthenticated - at the start, driver or agent refuses the
// other's certificate; PermissionDenied - the node id is bound to another certificate; Aborted -
// another agent took the node id over.
absl::Status RunAgent(const AgentOptions& options);

}  // namespace megascale::agent
