// The driver's Unix socket. gRPC would serve everybody who can connect. So this class accepts each
// connection, checks the user of the process at the other end before it reads anything, and hands
// only connections of the driver's own user to gRPC. Threads: any; it has a thread of its own.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}

namespace megascale::driver {

class OwnPort {
 public:
  // Listens; connections wait until Serve. Requires: PrepareSocket(path).
  static absl::StatusOr<std::unique_ptr<OwnPort>> Listen(const std::string& path);
  // Stops listening and removes the socket.
  ~OwnPort();

  // From now on hands connections to gRPC. `server`: from the ServerBuilder that built the running
  // server.
  void Serve(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server);

 private:
  OwnPort(std::string path, base::UniqueFd listener, base::UniqueFd stop);
  void Run();
  void Accept();
  void Warn(absl::string_view why);

  const std::string path_;
  const base::UniqueFd listener_;
  const base::UniqueFd stop_;  // an eventfd
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  absl::Duration warn_at_ = -absl::InfiniteDuration();
  std::thread thread_;
};

}  // namespace megascale::driver
