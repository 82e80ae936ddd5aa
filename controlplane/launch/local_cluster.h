// A whole cluster on this machine: one driver and some agents as real processes, over Unix sockets
// in an owner-only run directory; no port is opened. Restarts a driver or agent that dies. However
// the calling process ends, kill -9 included, its process keeper ends the rest and removes the run
// directory.
//
//   ASSIGN_OR_RETURN(auto cluster, LocalCluster::Start(options));   // first thing in main: it
//   forks … talk to cluster->driver_address() … cluster->Stop();
//
// Threads: Start from the main thread while it is the only one; then one thread of its own
// supervises.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megascale::launch {

// A driver or agent died and will be started again. Or the process keeper ("process keeper",
// backoff infinite): everything died with it and will not come back; Stop is all that is left.
struct ClusterRestart {
  std::string process;     // "driver", "agent n0"
  std::string how;         // "killed by signal 9 (Killed)"
  int times_in_a_row = 0;  // deaths since it last lived for 10 s
  absl::Duration backoff;  // until it is started again
  std::string log_path;    // its output
};

struct LocalClusterOptions {
  std::string program;  // path of `megascale`
  int num_agents = 1;
  int slots_per_agent = 1;
  // The driver's state. Its folder logs/ gets driver.log, agent-n0.log … (and one older of each,
  // *.1) and the agents' log directories n0/ ….
  std::string state_directory;
  std::string run_directory;  // empty: a new one under $XDG_RUNTIME_DIR or /tmp. Else made; removed
                              // at the end
  std::function<void(const ClusterRestart&)> on_restart;  // called from the supervising thread
};

class LocalCluster {
 public:
  // Starts driver and agents; does not wait until they answer.
  // Errors: InvalidArgument - counts; FailedPrecondition - the run directory's path is too long or
  // not empty, or this process has threads already; NotFound - the program.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(LocalClusterOptions options);

  ~LocalCluster();  // Stop()

  // "unix:RUN/driver.sock"
  std::string driver_address() const;
  std::string run_directory() const;

  // Ends the agents (SIGINT: without a drain), then the driver (SIGTERM), each with SIGKILL after
  // 5 s, then removes the run directory.
  // Blocking: at most about 20 s. Idempotent.
  void Stop();

 private:
  class Supervisor;
  explicit LocalCluster(std::unique_ptr<Supervisor> supervisor);
  std::unique_ptr<Supervisor> supervisor_;
};

// How long to wait before a process that died is started again: 0.2 s, doubling to 5 s; a life of
// 10 s starts over.
class RestartBackoff {
 public:
  absl::Duration OnDeath(absl::Duration lived);
  int times_in_a_row() const { return times_in_a_row_; }

 private:
  int times_in_a_row_ = 0;
};

}  // namespace megascale::launch
