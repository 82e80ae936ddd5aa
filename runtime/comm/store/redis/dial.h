// Makes a connection without blocking: looks the name up on a thread of its own, tries its
// addresses one after the other, and puts TLS in between where the address says so. Threads: one
// drives it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"
#include "runtime/base/tls/tls_tunnel.h"
#include "runtime/comm/redis/address.h"

namespace megascale::comm {

struct RedisTls {
  std::string ca_file;           // PEM; empty: the authorities that the system trusts
  std::string certificate_file;  // PEM, of this client; empty: it has none
  std::string key_file;          // PEM, of certificate_file
};

// One try to connect.
class RedisDial {
 public:
  RedisDial(const RedisAddress& address, const RedisTls& tls);

  // What poll(2) is to wait for.
  int fd() const;
  short events() const;

  // Goes on as far as it can; true once there is a connection to take. Errors: Unavailable - no
  // address answers, or the name has none; FailedPrecondition - a path or a TLS file cannot be
  // used.
  absl::StatusOr<bool> Drive();

  // Requires: Drive said true. Once. With TLS the handshake may be under way still: what is read
  // ends when it fails, and tunnel() says why.
  base::UniqueFd TakeSocket() { return std::move(socket_); }
  std::unique_ptr<base::TlsTunnel> TakeTunnel() { return std::move(tunnel_); }

 private:
  struct Place {
    sockaddr_storage bytes = {};
    socklen_t size = 0;
  };
  struct Lookup;

  absl::Status TakeLookup();
  absl::StatusOr<bool> Connected();

  const RedisAddress address_;
  const RedisTls tls_;
  std::shared_ptr<Lookup>
      lookup_;                 // shared with the thread that looks up; null: nothing to look up
  std::vector<Place> places_;  // still to be tried, the last one first
  base::UniqueFd socket_;      // being connected
  absl::Status last_;          // of the place tried last
  std::unique_ptr<base::TlsTunnel> tunnel_;
};

}  // namespace megascale::comm
