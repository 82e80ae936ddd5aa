// Connections to a driver as gRPC channels. gRPC would send its first bytes to any process that
// listens on a Unix socket's path. So this class makes the connections to Unix sockets itself,
// checks the folder, the socket and the process at the other end (runtime/base/socket), and hands
// the connections to gRPC. gRPC makes TCP connections, and its credentials check the other end.
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/address/address.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace grpc {
class Channel;
class ChannelArguments;
}  // namespace grpc

namespace megascale::security {

struct DriverChannelOptions {
  client::Address address;
  TlsFiles tls;
  bool insecure = false;
  Role role = Role::kUser;
  // How long Connect waits while a Unix socket's queue of connections is full; zero: it does not
  // wait.
  absl::Duration queue_timeout;
};

class DriverChannel {
 public:
  // Makes an object that is not connected yet. Errors: as MakeChannelCredentials.
  static absl::StatusOr<std::unique_ptr<DriverChannel>> Create(
      const DriverChannelOptions& options, const grpc::ChannelArguments& arguments);
  ~DriverChannel();

  // Returns a channel. TCP: one channel for all calls until ConnectSoon, which connects when it is
  // used and reconnects when it breaks. Unix: a channel over a new connection, which is useless
  // once the connection breaks. Blocking: at most queue_timeout. Errors: Unavailable - no process
  // listens on the socket, or its queue is full; Unauthenticated - the folder, the socket or the
  // listening process belongs to another user; the message says who, who was expected and what to
  // do.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect();

  // After a call that found no driver over TCP: from now on Connect returns a new channel, which
  // connects at once, where gRPC's own wait would have held up the old one. For callers that wait
  // between attempts themselves.
  void ConnectSoon();

  // Returns the error that Connect would return now for a Unix socket, but sends nothing. Returns
  // OK for TCP.
  absl::Status Check();

 private:
  struct Impl;
  explicit DriverChannel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::security
