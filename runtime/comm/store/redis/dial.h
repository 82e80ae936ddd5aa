// Makes a connection without blocking: looks up the name on a separate thread, tries its addresses
// one after the other, and adds TLS if the address says so. Threads: one drives it.
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
#include "runtime/comm/store/redis/address.h"

namespace megascale::comm {

struct RedisTls {
  std::string ca_file;           // PEM; empty: the authorities that the system trusts
  std::string certificate_file;  // PEM, of this client; empty: no client certificate
  std::string key_file;          // PEM, of certificate_file
};

// One attempt to connect.
class RedisDial {
 public:
  RedisDial(const RedisAddress& address, const RedisTls& tls);

  // The descriptor and the events for poll(2).
  int fd() const;
  short events() const;

  // Continues as far as possible; true once a connection can be taken. Errors: Unavailable - no
  // address answers, or the name has none; FailedPrecondition - a path or a TLS file cannot be
  // used.
  absl::StatusOr<bool> Drive();

  // Returns the connected socket. Requires: Drive returned true. Call it once. With TLS the
  // handshake may still be running: if it fails, reading from the socket ends, and the tunnel says
  // why.
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
  std::vector<Place> places_;  // not tried yet; the last one is next
  base::UniqueFd socket_;      // connecting
  absl::Status last_;          // error of the address that was tried last
  std::unique_ptr<base::TlsTunnel> tunnel_;
};

}  // namespace megascale::comm
