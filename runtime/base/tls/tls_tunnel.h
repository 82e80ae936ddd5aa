// A client's TLS session behind a socket pair, for libraries that know sockets but not TLS: bytes
// written to the plain end reach the server encrypted. The server's certificate must be signed by
// the given authority and be valid for the given name; this check cannot be switched off.
//
//   auto tunnel = TlsTunnel::Start(std::move(socket),
//                                  {.ca_file = "ca.pem", .server_name = "host"});
//   base::UniqueFd plain = (*tunnel)->TakePlainEnd();
//
// Writing may begin at once. When the session ends, for whatever reason, reading from the plain end
// ends too; status() says why. Threads: one of its own, which lives as long as the object; status()
// from any. Cost: two buffers of 64 KiB; a slow reader at one end stops reading at the other.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"

namespace megascale::base {

struct TlsTunnelOptions {
  std::string ca_file;           // PEM; empty: the authorities that the system trusts
  std::string certificate_file;  // PEM, of the client; empty: no client certificate
  std::string key_file;          // PEM, of certificate_file, without a passphrase
  std::string server_name;       // host name or address for which the certificate must be valid
  absl::Duration handshake_timeout = absl::Seconds(10);
};

class TlsTunnel {
 public:
  // Starts a session over `socket`, which is connected to the server and becomes non-blocking.
  // Errors: FailedPrecondition - a file cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsTunnel>> Start(UniqueFd socket,
                                                          const TlsTunnelOptions& options);
  // Ends the session and joins its thread, which takes little time: nothing blocks the thread.
  ~TlsTunnel();
  TlsTunnel(const TlsTunnel&) = delete;
  TlsTunnel& operator=(const TlsTunnel&) = delete;

  // Returns the plain end, non-blocking. Call it once.
  UniqueFd TakePlainEnd() { return std::move(plain_end_); }

  // Returns OK during the handshake and the session. Errors: FailedPrecondition - either side
  // refused the certificate or the session; DeadlineExceeded - the handshake took too long;
  // Unavailable - the connection was closed or broke.
  absl::Status status() const;

 private:
  class Session;

  TlsTunnel(std::unique_ptr<Session> session, UniqueFd plain_end, UniqueFd stop);

  UniqueFd plain_end_;
  const UniqueFd stop_;  // an eventfd
  mutable std::mutex mutex_;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace megascale::base
