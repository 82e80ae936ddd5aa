// The driver as a process: the event loop, its log, and the gRPC services in front of it. The first
// header to open is driver_core.h; this one is only what the command line needs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/job_retention.h"
#include "controlplane/security/tls_files.h"

namespace megascale::driver {

struct DriverOptions {
  // "unix:/path" or "host:port". A socket's folder is made owner-only, or must be so. TCP needs
  // `tls`, or `insecure` and a loopback address.
  std::string listen_address;
  // Keeps log/ (RocksDB) and jobs/ID/ (job.json, metrics.jsonl, checkpoints/ by default). Made
  // owner-only where it is missing. One driver at a time.
  std::string state_directory;
  // Which ended jobs stay in the list.
  JobRetention retention;
  security::TlsFiles tls;
  bool insecure = false;
};

class DriverServer {
 public:
  // Takes the log over, listens, serves on threads of its own.
  // Errors: InvalidArgument - options; FailedPrecondition - another driver listens there or has the
  // state directory open, or a newer program wrote it; DataLoss, PermissionDenied … from the log.
  static absl::StatusOr<std::unique_ptr<DriverServer>> Start(const DriverOptions& options);

  // Shuts down. Agents and workers go on without the driver.
  ~DriverServer();

  // Blocking: until the driver cannot go on (its log or a loss log cannot be written), at most
  // `timeout`. OK when nothing happened in that time.
  absl::Status WaitForFailure(absl::Duration timeout);

  // The port that it listens on; 0 for a Unix socket.
  int port() const;

 private:
  struct Impl;
  explicit DriverServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Serves until SIGTERM or SIGINT, then returns OK; workers go on. Blocks these signals in the
// calling thread and those it makes: call it from the main thread before there are others.
absl::Status RunDriver(const DriverOptions& options);

}  // namespace megascale::driver
