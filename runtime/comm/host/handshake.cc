#include "runtime/comm/host/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

static_assert(sizeof(Hello) == 120 && sizeof(Challenge) == 65, "sent as they lie in memory");

template <typename T>
void Append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

bool Equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::Status FillRandom(Digest& digest) {
  if (RAND_bytes(digest.data(), static_cast<int>(digest.size())) == 1) return absl::OkStatus();
  return absl::InternalError("the system gave no random bytes for a handshake");
}

// Sends a handshake message, which fits into the buffer of any new socket.
template <typename T>
absl::Status SendWhole(int socket, const T& message) {
  const ssize_t sent = ::send(socket, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(sizeof(message))) return absl::OkStatus();
  return absl::UnavailableError("the peer hung up during the handshake");
}

// Collects the bytes of one message; returns true when all are there.
template <typename T>
absl::StatusOr<bool> ReceiveWhole(int socket, std::string& received, T& message) {
  while (received.size() < sizeof(message)) {
    char bytes[sizeof(message)];
    const ssize_t got = ::recv(socket, bytes, sizeof(message) - received.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return absl::UnavailableError("the peer hung up during the handshake");
    received.append(bytes, static_cast<size_t>(got));
  }
  std::memcpy(&message, received.data(), sizeof(message));
  received.clear();
  return true;
}

}  // namespace

Digest DigestOf(const std::string& text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

absl::StatusOr<Hello> MakeHello(const std::string& job_id, int64_t attempt,
                                const std::string& group) {
  Hello hello;
  hello.attempt = attempt;
  hello.job = DigestOf(job_id);
  hello.group = DigestOf(group);
  RETURN_IF_ERROR(FillRandom(hello.nonce));
  return hello;
}

Digest MakeProof(const Shared& shared, Side side, const Hello& hello, const Digest& nonce) {
  std::string text = side == Side::kAcceptor ? "acceptor" : "connector";
  Append(text, hello);
  Append(text, nonce);
  text.append(shared.address);
  Digest digest;
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), shared.secret.data(), static_cast<int>(shared.secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  MEGASCALE_CHECK(made != nullptr && size == digest.size());
  return digest;
}

absl::Status ConnectorHandshake::Start() { return SendWhole(socket_, hello_); }

absl::StatusOr<bool> ConnectorHandshake::Advance() {
  if (!proof_sent_) {
    Challenge challenge;
    ASSIGN_OR_RETURN(const bool arrived, ReceiveWhole(socket_, received_, challenge));
    if (!arrived) return false;
    if (challenge.verdict == Verdict::kOtherAttempt) {
      return absl::AbortedError(
          "listens for another job or attempt; this rank's attempt is probably over, the next one "
          "will find it");
    }
    const Digest expected = MakeProof(shared_, Side::kAcceptor, hello_, challenge.nonce);
    if (!Equal(challenge.proof, expected)) {
      return absl::PermissionDeniedError(absl::StrCat(
          "does not know the attempt's secret, or does not listen at ", shared_.address,
          ", which the store names as its address: somebody may have changed the store"));
    }
    RETURN_IF_ERROR(
        SendWhole(socket_, MakeProof(shared_, Side::kConnector, hello_, challenge.nonce)));
    proof_sent_ = true;
  }
  Verdict verdict = Verdict::kWelcome;
  ASSIGN_OR_RETURN(const bool arrived, ReceiveWhole(socket_, received_, verdict));
  if (verdict == Verdict::kWelcome) return arrived;
  return absl::InternalError("shares no such group with this rank: their plans differ");
}

absl::StatusOr<bool> AcceptorHandshake::Advance() {
  if (!challenge_sent_) {
    ASSIGN_OR_RETURN(const bool arrived, ReceiveWhole(socket_.get(), received_, hello_));
    if (!arrived) return false;
    RETURN_IF_ERROR(OnHello());
    challenge_sent_ = true;
  }
  Digest proof;
  ASSIGN_OR_RETURN(const bool arrived, ReceiveWhole(socket_.get(), received_, proof));
  if (!arrived) return false;
  if (!Equal(proof, MakeProof(shared_, Side::kConnector, hello_, challenge_.nonce))) {
    return absl::PermissionDeniedError(
        "it does not know the attempt's secret, or connected to another address than this one");
  }
  return true;
}

absl::Status AcceptorHandshake::Answer(Verdict verdict) {
  return SendWhole(socket_.get(), verdict);
}

absl::Status AcceptorHandshake::OnHello() {
  if (std::memcmp(hello_.magic, expected_.magic, sizeof(hello_.magic)) != 0) {
    return absl::FailedPreconditionError("its greeting is not that of a rank");
  }
  if (hello_.attempt != expected_.attempt || hello_.to_rank != expected_.to_rank ||
      !Equal(hello_.job, expected_.job)) {
    challenge_.verdict = Verdict::kOtherAttempt;
    (void)SendWhole(socket_.get(), challenge_);  // it may be gone; it is dropped either way
    return absl::FailedPreconditionError(
        absl::StrCat("its greeting is for attempt ", hello_.attempt, ", rank ", hello_.to_rank,
                     " of some job, not for attempt ", expected_.attempt, ", rank ",
                     expected_.to_rank, " of this one"));
  }
  RETURN_IF_ERROR(FillRandom(challenge_.nonce));
  challenge_.proof = MakeProof(shared_, Side::kAcceptor, hello_, challenge_.nonce);
  return SendWhole(socket_.get(), challenge_);
}

}  // namespace megascale::comm
