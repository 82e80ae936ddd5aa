// A client's TLS session behind a socket pair: what is written into one end comes out encrypted at
// the server, for libraries that know sockets and no TLS. The server's certificate must be signed
// by the given authority and be for the given name; there is no way around that.
//
//   auto tunnel = TlsTunnel::Start(std::move(socket), {.ca_file = "ca.pem", .server_name =
//   "host"}); base::UniqueFd plain = (*tunnel)->TakePlainEnd();
//
// Writing may begin at once. When the session ends, for whatever reason, so does what can be read
// from the plain end; status() says why. Threads: one of its own, that lives as long as the object;
// status() from any. Cost: two buffers of 64 KiB; what is not taken at one end is not read at the
// other.
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
  std::string certificate_file;  // PEM, of the client; empty: it has none
  std::string key_file;          // PEM, of certificate_file, without a passphrase
  std::string server_name;       // that the certificate must be for: a host name or an address
  absl::Duration handshake_timeout = absl::Seconds(10);
};

class TlsTunnel {
 public:
  // `socket` is connected to the server; it becomes non-blocking. Errors: FailedPrecondition - a
  // file cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsTunnel>> Start(UniqueFd socket,
                                                          const TlsTunnelOptions& options);
  // Ends the session and waits for its thread, which is short: nothing blocks it.
  ~TlsTunnel();
  TlsTunnel(const TlsTunnel&) = delete;
  TlsTunnel& operator=(const TlsTunnel&) = delete;

  // The end to speak over, non-blocking. Once.
  UniqueFd TakePlainEnd() { return std::move(plain_end_); }

  // OK while the session is made or stands. FailedPrecondition - the certificate or the session was
  // refused, by either side; DeadlineExceeded - the handshake took too long; Unavailable - the
  // connection was closed or broke.
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
