// The agent's stream to the driver: opened again whenever it breaks, for ever. gRPC stays in
// driver_stream.cc. Private to this folder.
//
// Outgoing messages wait while there is no stream: of the actual state only the newest, because it
// is whole; the rest in order. What was sent on a stream that broke may be lost: the caller sends
// it again when `opened` says that there is a new one. Threads: one at a time (the callbacks'
// threads are inside).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/client/address.h"
#include "controlplane/security/tls_files.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

struct DriverStreamOptions {
  client::Address address;
  security::TlsFiles tls;
  bool insecure = false;
  v1::Hello hello;
};

class DriverStream {
 public:
  // Does not connect yet. Errors: InvalidArgument - TCP without TLS, or files that cannot be used;
  // Unauthenticated - the certificate has expired.
  static absl::StatusOr<std::unique_ptr<DriverStream>> Create(const DriverStreamOptions& options);
  // Blocking: until the stream is cancelled, at most 5 s.
  ~DriverStream();

  // Readable when Take has something.
  int events_fd() const;

  struct Events {
    bool opened = false;                  // a new stream: its first message came
    std::vector<v1::AgentDown> messages;  // of the newest stream
    absl::Status ended;  // Aborted, FailedPrecondition: the driver will not have us
  };
  Events Take();
  bool is_open() const { return was_open_; }  // as of the last Take

  // Opens the stream where that is due, gives up one that stands still. Call at NextWake at the
  // latest.
  void Maintain(absl::Duration now);
  absl::Duration NextWake() const;

  void SendActual(v1::ActualState state);
  void Send(v1::AgentUp message);

 private:
  class Reactor;
  struct Shared;
  struct Channel;
  DriverStream(DriverStreamOptions options, std::unique_ptr<Channel> channel);

  const DriverStreamOptions options_;
  std::unique_ptr<Channel> channel_;
  std::shared_ptr<Shared> shared_;
  bool was_open_ = false;
  absl::Duration open_at_ = -absl::InfiniteDuration();
  absl::Duration backoff_;
};

}  // namespace megascale::agent
