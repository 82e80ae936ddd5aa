// A whole cluster on this machine: one driver and some agents as real processes, over Unix sockets
// in an owner-only run directory; no port is opened. Restarts a driver or agent that dies. However
// the calling process ends, kill -9 included, its process keeper ends all other processes and
// removes the run directory.
//
//   // The first thing in main, because it forks.
//   ASSIGN_OR_RETURN(auto cluster, LocalCluster::Start(options));
//   … talk to cluster->driver_address() …
//   cluster->Stop();
//
// Threads: call Start from the main thread while no other thread exists; then the cluster's own
// thread supervises.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megascale::launch {

// A driver or agent died and will be started again. If the backoff is infinite, it will not be
// started again, and only Stop is left to call. Either the "process keeper" died, and all processes
// with it; or a process ended by itself three times in a row at its start, so that the next one
// would do the same: the driver before any driver had listened, an agent before it had once lived
// for 10 s. One or two such ends are no reason to stop: the lock or the port may still belong to a
// cluster that is just ending.
struct ClusterRestart {
  std::string process;     // "driver", "agent n0"
  std::string how;         // "killed by signal 9 (Killed)"
  int times_in_a_row = 0;  // deaths since it last lived for 10 s
  absl::Duration backoff;  // until it is started again
  std::string log_path;    // its output
  std::string error;       // what the process said last, if it is not started again
};

struct LocalClusterOptions {
  std::string program;  // path of `megascale`
  int num_agents = 1;
  int slots_per_agent = 1;
  // The driver's state. Its folder logs/ gets driver.log, agent-n0.log … (and one older of each,
  // *.1) and the agents' log directories n0/ ….
  std::string state_directory;
  std::string http_address;  // of the driver's page; empty: none
  // Empty: a new one under $XDG_RUNTIME_DIR or /tmp. Created if missing; removed at the end.
  std::string run_directory;
  std::string machine_tests;  // the driver's --machine-tests; empty: its default
  std::function<void(const ClusterRestart&)> on_restart;  // called from the supervising thread
};

class LocalCluster {
 public:
  // Starts driver and agents; does not wait until they answer.
  // Errors: InvalidArgument - a count is out of range; FailedPrecondition - the run directory's
  // path is too long, the directory is not empty, or this process already has other threads;
  // NotFound - `program` does not exist.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(LocalClusterOptions options);

  ~LocalCluster();  // Stop()

  // "unix:RUN/driver.sock"
  std::string driver_address() const;
  std::string run_directory() const;

  // Ends the agents (SIGINT: without a drain), then the driver (SIGTERM), and kills those that
  // still run after 5 s (SIGKILL). Then removes the run directory.
  // Blocking: at most about 20 s. Idempotent.
  void Stop();

 private:
  class Supervisor;
  explicit LocalCluster(std::unique_ptr<Supervisor> supervisor);
  std::unique_ptr<Supervisor> supervisor_;
};

// The wait before a process that died is started again: 0.2 s, doubling up to 5 s. After a life of
// at least 10 s it is 0.2 s again.
class RestartBackoff {
 public:
  absl::Duration OnDeath(absl::Duration lived);
  int times_in_a_row() const { return times_in_a_row_; }

 private:
  int times_in_a_row_ = 0;
};

}  // namespace megascale::launch
