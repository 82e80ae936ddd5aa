// The handshake of two ranks on a new socket: each proves to the other that it knows the attempt's
// secret, without revealing it, and that both ends of the socket are theirs.
//
//   connector -> acceptor   Hello       job, attempt, group, ranks, a random number
//   acceptor  -> connector  Challenge   another random number and
//                                       HMAC-SHA256(secret, "acceptor", Hello, number, address)
//   connector -> acceptor   proof       HMAC-SHA256(secret, "connector", Hello, number, address)
//   acceptor  -> connector  Verdict     one byte
//
// The address is the one at which the acceptor listens, and the one to which the connector
// connected. They differ if somebody has changed the address in the store to one of his own, from
// which he passes the bytes on to the acceptor: then neither end accepts the other's proof.
//
// A rank that came to the wrong attempt or group is told so. A socket that closes without a verdict
// means either that the peer's process died, which is final, or that the peer dropped this socket
// because it had too many; the connector may then try again. An acceptor closes the socket of a
// stranger (another program, a wrong secret) without an answer. Sockets are non-blocking; call
// Advance when one is ready. Threads: one.
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
  char magic[8] = {'M', 'G', 'S', 'C', 'O', 'M', 'M', '2'};
  int64_t attempt = 0;
  int32_t from_rank = 0;  // world ranks
  int32_t to_rank = 0;
  Digest job = {};
  Digest group = {};
  Digest nonce = {};
};

// What an acceptor answers to a connector. Sent on the wire: never change the numbers.
enum class Verdict : uint8_t {
  kWelcome = 1,
  kOtherAttempt = 2,  // the Hello is for another job, attempt or rank
  kNoSuchGroup = 3,   // the connector proved itself, but the ranks share no group of this name
};

struct Challenge {
  Verdict verdict = Verdict::kWelcome;  // not kWelcome: refused, the other fields are meaningless
  Digest nonce = {};
  Digest proof = {};
};

// Returns the SHA-256 of a name.
Digest DigestOf(const std::string& text);

// Makes a Hello with a new random number.
absl::StatusOr<Hello> MakeHello(const std::string& job_id, int64_t attempt,
                                const std::string& group);

enum class Side { kAcceptor, kConnector };

// What both ends must have in common.
struct Shared {
  std::string secret;   // of the attempt
  std::string address;  // see above; empty: a rank of an older version, without it, takes part
};

// Returns the bytes by which `side` proves that it knows what is shared.
Digest MakeProof(const Shared& shared, Side side, const Hello& hello, const Digest& nonce);

// The connector's side of a handshake.
class ConnectorHandshake {
 public:
  ConnectorHandshake(int socket, Shared shared, const Hello& hello)
      : socket_(socket), shared_(std::move(shared)), hello_(hello) {}

  // Sends the Hello. Call it once, first. Errors: Unavailable - the peer hung up.
  absl::Status Start();
  // Continues; true once the peer has proved itself. Errors: Unavailable - the peer hung up: it is
  // gone, or it dropped this socket, so try another one; Aborted - it belongs to another attempt;
  // PermissionDenied - it does not know the secret, or listens at another address; Internal - it
  // does not share this group.
  absl::StatusOr<bool> Advance();

 private:
  const int socket_;
  const Shared shared_;
  const Hello hello_;
  std::string received_;
  bool proof_sent_ = false;
};

// The acceptor's side of a handshake.
class AcceptorHandshake {
 public:
  // `expected`: what every Hello must contain; its group, from_rank and nonce are ignored.
  AcceptorHandshake(base::UniqueFd socket, Shared shared, const Hello& expected)
      : socket_(std::move(socket)), shared_(std::move(shared)), expected_(expected) {}

  int socket() const { return socket_.get(); }
  // Continues; true once the peer has proved itself. Any error: a stranger, close the socket.
  absl::StatusOr<bool> Advance();
  // Ends the handshake with a peer that has proved itself. Errors: Unavailable - it hung up.
  absl::Status Answer(Verdict verdict);
  // The rank that the peer claims to be. Trust it only after Advance returned true.
  const Hello& hello() const { return hello_; }
  base::UniqueFd Release() { return std::move(socket_); }

 private:
  absl::Status OnHello();

  base::UniqueFd socket_;
  const Shared shared_;
  const Hello expected_;
  Hello hello_;
  Challenge challenge_ = {};
  std::string received_;
  bool challenge_sent_ = false;
};

}  // namespace megascale::comm
