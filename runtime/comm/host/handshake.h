// How two ranks meet on a fresh socket: each proves to the other that it knows the attempt's
// secret, without showing it.
//
//   connector -> acceptor   Hello       job, attempt, group, ranks, a random number
//   acceptor  -> connector  Challenge   another random number; HMAC-SHA256(secret, "acceptor",
//   Hello, number) connector -> acceptor   Proof       HMAC-SHA256(secret, "connector", Hello,
//   number) acceptor  -> connector  Verdict     one byte
//
// An acceptor closes on whoever does not fit; it does not say why. Sockets are non-blocking;
// Advance is called when one is ready. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::comm {

using Digest = std::array<uint8_t, 32>;

struct Hello {
  char magic[8] = {'M', 'G', 'S', 'C', 'O', 'M', 'M', '1'};
  int64_t attempt = 0;
  int32_t from_rank = 0;  // world ranks
  int32_t to_rank = 0;
  Digest job = {};
  Digest group = {};
  Digest nonce = {};
};

struct Challenge {
  Digest nonce;
  Digest proof;
};

// SHA-256 of a name.
Digest DigestOf(const std::string& text);

// A Hello with a fresh random number.
absl::StatusOr<Hello> MakeHello(const std::string& job_id, int64_t attempt,
                                const std::string& group);

enum class Side { kAcceptor, kConnector };

// What `side` sends to prove that it knows the secret.
Digest MakeProof(const std::string& secret, Side side, const Hello& hello, const Digest& nonce);

// The connector's part.
class ConnectorHandshake {
 public:
  ConnectorHandshake(int socket, std::string secret, const Hello& hello)
      : socket_(socket), secret_(std::move(secret)), hello_(hello) {}

  // Sends the Hello. Once, first.
  absl::Status Start();
  // True once the peer is proven. PermissionDenied - it does not know the secret;
  // FailedPrecondition - it refused.
  absl::StatusOr<bool> Advance();

 private:
  const int socket_;
  const std::string secret_;
  const Hello hello_;
  std::string received_;
  bool proof_sent_ = false;
};

// The acceptor's part.
class AcceptorHandshake {
 public:
  // `expected`: what must stand in every Hello, but for group, from_rank and nonce.
  AcceptorHandshake(base::UniqueFd socket, std::string secret, const Hello& expected)
      : socket_(std::move(socket)), secret_(std::move(secret)), expected_(expected) {}

  int socket() const { return socket_.get(); }
  // True once the peer is proven; an error: a stranger, drop it.
  absl::StatusOr<bool> Advance();
  // Whom it claims to be; believe it only after Advance was true.
  const Hello& hello() const { return hello_; }
  base::UniqueFd Release() { return std::move(socket_); }

 private:
  absl::Status OnHello();

  base::UniqueFd socket_;
  const std::string secret_;
  const Hello expected_;
  Hello hello_;
  Challenge challenge_ = {};
  std::string received_;
  bool challenge_sent_ = false;
};

}  // namespace megascale::comm
