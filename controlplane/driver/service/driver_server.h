// The driver as a process: the event loop, its log, and the gRPC services in front of it. Open
// driver_core.h first; this header has only what the command line needs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/detection/failure_detector.h"
#include "controlplane/driver/detection/new_nodes.h"
#include "controlplane/driver/retention/job_retention.h"
#include "controlplane/protocol/protocol.h"
#include "controlplane/security/tls_files.h"

namespace megascale::driver {

// The file in the state directory that has the URL of the page with its token. It is written before
// the driver answers its first call.
inline constexpr char kPageUrlFile[] = "http-url";

struct DriverOptions {
  // "unix:/path" or "host:port". The socket's folder is created owner-only; an existing one must be
  // owner-only. TCP needs `tls`, or `insecure` and a loopback address.
  std::string listen_address;
  // Holds log/ (RocksDB) and jobs/ID/ (job.json, metrics.jsonl, checkpoints/ by default). Created
  // owner-only if it is missing. One driver at a time may use it.
  std::string state_directory;
  // Which ended jobs stay in the list.
  JobRetention retention;
  // How long an agent may be silent before its machine counts as lost and its jobs move; 2s to 1h.
  // The limits in a job's specification concern the job's own ranks only.
  absl::Duration node_timeout = FailureDetector::kNodeTimeout;
  // How machines are tested before they get ranks, and after failures that could be theirs: "off",
  // "quick" (about a second), "full" (at most half a minute). Empty: full on TCP; quick on a Unix
  // socket, where all agents are on one machine.
  std::string machine_tests = "off";
  // No agent of the driver before lives: their machines count as lost at once.
  bool agents_ended = false;
  // The rate in MB/s, each way, that two machines should reach when they exchange bytes as a test;
  // below half of it the exchange fails. 0: as measured (../exchanges/exchanges.h).
  double exchange_rate = 0;
  // How often the driver looks whether jobs stand still or have become slow; 1s to 10min. Steps are
  // compared over at least this time.
  absl::Duration look_interval = absl::Seconds(10);
  // The maximum number of slots that an agent may offer.
  int64_t slots_max = protocol::kSlotsMax;
  // How many new nodes agents with one certificate may make in an hour.
  int64_t new_nodes_per_hour = NewNodes::kPerHour;
  // Which new nodes get ranks: "any", or "known", those that an operator named (UncordonNode).
  std::string join = "any";
  security::TlsFiles tls;
  bool insecure = false;
  // After SIGTERM the driver still serves machines with ranks, which drain, at most for this long.
  // For a scheduler that sends SIGTERM to the driver and to agents at once.
  absl::Duration drain_timeout = absl::ZeroDuration();
  // "host:port" of the page; empty: there is no page. If the address is not loopback, the page uses
  // `tls`.
  std::string http_address;
};

class DriverServer {
 public:
  // Takes the log over, listens, and serves on its own threads.
  // Errors: InvalidArgument - options; FailedPrecondition - another driver listens there or has the
  // state directory open, or a newer program wrote it; DataLoss, PermissionDenied … from the log.
  static absl::StatusOr<std::unique_ptr<DriverServer>> Start(const DriverOptions& options);

  // Shuts down. Agents and workers go on without the driver.
  ~DriverServer();

  // Waits until the driver cannot go on, because its log or a loss log cannot be written, and
  // returns why. Blocking: at most `timeout`, then OK.
  absl::Status WaitForFailure(absl::Duration timeout);

  // True while a machine that is not lost has ranks.
  bool HasBusyNodes() const;

  // The port that it listens on; 0 for a Unix socket.
  int port() const;
  // The address of the page, with its token; empty: there is none.
  std::string page_url() const;

 private:
  struct Impl;
  explicit DriverServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Serves until SIGTERM (and drain_timeout) or SIGINT, then returns OK; workers go on. Blocks these
// signals in the calling thread and in threads that it starts, so call it from the main thread
// before any other thread exists.
absl::Status RunDriver(const DriverOptions& options);

}  // namespace megascale::driver
