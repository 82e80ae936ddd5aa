// The agent's stream to the driver, which is opened again whenever it breaks. Only driver_stream.cc
// sees gRPC. Private to this folder.
// While there is no stream, only the newest actual state waits to be sent, because each one is
// complete; Send drops other messages. Messages that were sent on a stream that broke may be lost.
// The caller sends dropped and lost messages again when `opened` says that there is a new stream.
// Threads: SendActual from any; the others one at a time. gRPC's callback threads do not reach the
// caller.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/address/address.h"
#include "controlplane/security/tls_files.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

// How long it may take to find out why no driver answers.
inline constexpr absl::Duration kProbeTimeout = absl::Seconds(3);

struct DriverStreamOptions {
  client::Address address;
  security::TlsFiles tls;
  bool insecure = false;
  v1::Hello hello;
};

class DriverStream {
 public:
  // Makes a stream that is not connected yet. Errors: InvalidArgument - TCP without TLS, or TLS
  // files that cannot be used; Unauthenticated - the certificate has expired.
  static absl::StatusOr<std::unique_ptr<DriverStream>> Create(const DriverStreamOptions& options);
  // Cancels the stream. Blocking: at most 5 s; longer while a probe finds out why no driver answers
  // over TCP, until the system has looked up and tried the driver's addresses.
  ~DriverStream();

  // Readable when Take has something.
  int events_fd() const;

  struct Events {
    bool opened = false;                  // there is a new stream: its first message arrived
    std::vector<v1::AgentDown> messages;  // from the newest stream
    // Not OK: the driver refuses this agent for good. Errors: Aborted, InvalidArgument,
    // PermissionDenied; FailedPrecondition, if no driver has accepted this agent yet - their
    // versions do not work together. After any other error the stream logs it and tries again.
    absl::Status ended;
  };
  Events Take();
  bool is_open() const { return was_open_; }  // as of the last Take

  // Checks the driver's address now. Errors: Unauthenticated - its Unix socket belongs to another
  // user. OK: the address may be used, or no driver listens there yet.
  absl::Status CheckAddress() const;

  // Opens the stream when that is due, and gives up a stalled one. Call no later than NextWake.
  // Tries a refused address again and logs it. If no driver answers for some seconds, logs that,
  // too, then once a minute.
  void Maintain(absl::Duration now);
  absl::Duration NextWake() const;

  // Sets what the agent knows of epochs. The next stream tells it to the driver.
  void SetKnown(const v1::KnownState& known) { *options_.hello.mutable_known() = known; }

  void SendActual(v1::ActualState state);
  void Send(v1::AgentUp message);

 private:
  class Reactor;
  struct Shared;
  struct Channel;
  DriverStream(DriverStreamOptions options, std::unique_ptr<Channel> channel);
  bool Connect(absl::Duration now);

  DriverStreamOptions options_;
  std::unique_ptr<Channel> channel_;
  std::shared_ptr<Shared> shared_;
  void LogRefusal(absl::Duration now);
  void LogAbsence(absl::Duration now);

  bool was_open_ = false;
  int num_refusals_ = 0;  // number of refusals seen
  absl::StatusCode refusal_logged_ = absl::StatusCode::kOk;
  absl::Duration refusal_logged_at_ = -absl::InfiniteDuration();
  absl::Duration open_at_ = -absl::InfiniteDuration();
  absl::Duration backoff_;
  absl::Duration warn_at_ = -absl::InfiniteDuration();
  absl::Status connect_error_;  // of the last Connect; over TCP always OK
  absl::Duration next_absence_log_ = absl::InfiniteDuration();  // infinite: the stream is open
  class Probe;
  std::unique_ptr<Probe> probe_;
};

}  // namespace megascale::agent
