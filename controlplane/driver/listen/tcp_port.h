// The driver's TCP port. gRPC would take every connection and hold a descriptor and 26 KB for it,
// so strangers who connect and say nothing could take all descriptors, those of the driver's log
// included. So this class accepts the connections and hands each one to gRPC at its first byte.
// Connections that have sent nothing are closed after a short time, and the oldest of them when
// there are too many. Whoever has spoken must end the TLS handshake within gRPC's limit
// (server_limits.h), and only some connections, of an address and in all, may be that far at one
// time. A part of the descriptors is for the driver's own files. Each refusal is logged, as one
// line a minute for each reason. Threads: any; it has a thread of its own.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/address/address.h"
#include "runtime/base/fd.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}

namespace megascale::driver {

class TcpPort {
 public:
  struct Limits {
    // Connections that have sent nothing: how many in all, of one address, and for how long.
    int silent_max = 512;
    int silent_of_address_max = 64;
    absl::Duration silence_max = absl::Seconds(5);
    // Connections that have spoken, and may still be in the handshake. 0: without TLS every process
    // of this machine may connect.
    int unproven_max = 1024;
    int unproven_of_address_max = 512;
    absl::Duration handshake_max = absl::Seconds(11);  // gRPC's limit and some time
    // No connection gets this descriptor or a higher one.
    int fd_max = 0;
  };
  // Returns the limits for this process's limit of descriptors. A quarter of these, at most 4,096,
  // are for the driver's own files.
  static Limits LimitsOf(bool has_tls);

  // Listens; connections wait until Serve. Errors: FailedPrecondition - as CheckTcpAddress.
  static absl::StatusOr<std::unique_ptr<TcpPort>> Listen(const client::Address& address,
                                                         const Limits& limits);
  // As Stop.
  ~TcpPort();

  // From now on hands connections to gRPC. `server`: from the ServerBuilder that built the running
  // server.
  void Serve(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server);

  // Stops accepting; connections that gRPC has go on. Call it before the server ends.
  void Stop();

  // Notes that a call came over this connection, so that its handshake has ended. `peer`: gRPC's
  // name of it.
  void OnCall(const std::string& peer);

  int port() const { return port_; }

 private:
  struct Silent {
    base::UniqueFd fd;
    int listener = -1;
    std::string address;  // without the port
    std::string peer;     // as gRPC names it
    absl::Duration since;
  };
  struct Unproven {
    std::string address;
    absl::Duration since;
  };

  TcpPort(std::vector<base::UniqueFd> listeners, base::UniqueFd stop, const Limits& limits);
  void Run();
  // Returns false when no connection waits at the listener.
  bool Accept(int listener);
  using Place = std::list<Silent>::iterator;
  // Takes a connection out of the silent ones.
  Silent Take(Place place);
  void CloseSilent(absl::Duration now);
  void OnFirstByte(Place place);
  // Counts a connection that begins its handshake; returns why it may not, "" if it may.
  std::string Begin(const Silent& connection);
  void ForgetBegun(absl::Duration now);
  // Logs that a connection from this address was closed.
  void Refuse(const std::string& address, const std::string& why);

  const std::vector<base::UniqueFd> listeners_;
  const base::UniqueFd stop_;  // an eventfd
  const Limits limits_;
  const int port_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;

  // Only the thread uses these.
  std::list<Silent> silent_;  // oldest first
  std::map<std::string, int> silent_of_;
  struct Refused {
    int64_t count = 0;  // since the last line
    absl::Duration warn_at = -absl::InfiniteDuration();
  };
  std::map<std::string, Refused> refused_;  // by reason

  std::mutex mutex_;
  std::map<std::string, Unproven> unproven_;  // by peer
  std::map<std::string, int> unproven_of_;    // by address
  // The peers of unproven_ and the time, oldest first, and some that have been proven since.
  std::deque<std::pair<std::string, absl::Duration>> begun_;

  std::thread thread_;
};

}  // namespace megascale::driver
