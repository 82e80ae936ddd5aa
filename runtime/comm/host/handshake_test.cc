// Peers that can prove that they know the attempt's secret, and peers that cannot: garbage, other
// secrets, older attempts, recordings. Both ends in one thread, over a socket pair.
#include "runtime/comm/host/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"

namespace megascale::comm {
namespace {

constexpr char kSecret[] = "the secret of attempt 7, 32 byte";
constexpr char kOlderSecret[] = "the secret of attempt 6, 32 byte";
const Shared kShared = {kSecret, "tcp 10.0.0.5 4000"};

Hello GreetingOf(int64_t attempt, int to_rank = 1) {
  Hello hello = MakeHello("job", attempt, "all").value();
  hello.from_rank = 0;
  hello.to_rank = to_rank;
  return hello;
}

// A stranger's end of a socket, and at the other end an acceptor of rank 1 in attempt 7.
class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() { Meet(); }

  void Meet() {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    peer_ = base::UniqueFd(ends[0]);
    acceptor_ =
        std::make_unique<AcceptorHandshake>(base::UniqueFd(ends[1]), kShared, GreetingOf(7));
  }
  template <typename T>
  void Say(const T& message) {
    ASSERT_EQ(::send(peer_.get(), &message, sizeof(message), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(message)));
  }
  template <typename T>
  T Hear() {
    T message;
    EXPECT_EQ(::recv(peer_.get(), &message, sizeof(message), MSG_DONTWAIT),
              static_cast<ssize_t>(sizeof(message)));
    return message;
  }
  // True: the peer is proven.
  absl::StatusOr<bool> Judge() { return acceptor_->Advance(); }

  base::UniqueFd peer_;
  std::unique_ptr<AcceptorHandshake> acceptor_;
};

TEST_F(HandshakeTest, BothSidesProveThatTheyKnowTheSecret) {
  ConnectorHandshake connector(peer_.get(), kShared, GreetingOf(7));
  ASSERT_TRUE(connector.Start().ok());
  EXPECT_EQ(Judge().value(), false);
  EXPECT_EQ(connector.Advance().value(), false);
  EXPECT_EQ(Judge().value(), true);
  EXPECT_EQ(acceptor_->hello().from_rank, 0);
  ASSERT_TRUE(acceptor_->Answer(Verdict::kWelcome).ok());
  EXPECT_EQ(connector.Advance().value(), true);
}

TEST_F(HandshakeTest, EachEndRefusesAProofForAnotherAddress) {
  const Shared elsewhere = {kSecret, "tcp 10.0.0.66 4000"};  // a stranger passes the bytes on
  ConnectorHandshake connector(peer_.get(), elsewhere, GreetingOf(7));
  ASSERT_TRUE(connector.Start().ok());
  EXPECT_EQ(Judge().value(), false);
  EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kPermissionDenied);

  Meet();
  const Hello hello = GreetingOf(7);
  Say(hello);
  EXPECT_EQ(Judge().value(), false);
  const auto challenge = Hear<Challenge>();
  Say(MakeProof(elsewhere, Side::kConnector, hello, challenge.nonce));
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kPermissionDenied);
}

// So ranks of that version and of this one can meet.
TEST_F(HandshakeTest, WithoutAnAddressTheProofIsThatOfTheVersionBefore) {
  Hello hello;
  hello.attempt = 7;
  hello.job = DigestOf("job");
  hello.group = DigestOf("all");
  const Digest proof = MakeProof({kSecret, ""}, Side::kConnector, hello, Digest());
  EXPECT_EQ(absl::BytesToHexString(
                absl::string_view(reinterpret_cast<const char*>(proof.data()), proof.size())),
            "4582c8adbd493652bc3918f93c4788270d2090b9c3980845221bd7a2881cbba3");
}

TEST_F(HandshakeTest, TheSecretIsNeverOnTheWire) {
  ConnectorHandshake connector(peer_.get(), kShared, GreetingOf(7));
  const Hello hello = GreetingOf(7);
  const Digest proof = MakeProof(kShared, Side::kConnector, hello, hello.nonce);
  std::string sent(reinterpret_cast<const char*>(&hello), sizeof(hello));
  sent.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  for (size_t size = 4; size <= std::strlen(kSecret); size += 4) {
    EXPECT_EQ(sent.find(std::string(kSecret, size)), std::string::npos);
  }
}

TEST_F(HandshakeTest, GarbageIsRefusedOnceItIsAsLongAsAGreeting) {
  const std::string garbage(sizeof(Hello) - 1, 'x');
  ASSERT_EQ(::send(peer_.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(garbage.size()));
  EXPECT_EQ(Judge().value(), false) << "may be slow";
  Say('x');
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HandshakeTest, NoMoreThanOneMessageIsEverTakenFromAStranger) {
  const std::string flood(64 << 10, 'x');
  ASSERT_GT(::send(peer_.get(), flood.data(), flood.size(), MSG_NOSIGNAL), 1 << 10);
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kFailedPrecondition);
  char rest[1 << 10];
  EXPECT_GT(::recv(acceptor_->socket(), rest, sizeof(rest), MSG_DONTWAIT), 0)
      << "what follows a greeting stays in the socket";
}

TEST_F(HandshakeTest, AStrangerThatHangsUpIsForgotten) {
  peer_.reset();
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HandshakeTest, AGreetingOfAnotherAttemptRankOrJobIsRefusedAndTheConnectorIsTold) {
  Hello other_job = GreetingOf(7);
  other_job.job = DigestOf("another");
  for (const Hello& hello : {GreetingOf(6), GreetingOf(8), GreetingOf(7, 2), other_job}) {
    Meet();
    ConnectorHandshake connector(peer_.get(), kShared, hello);
    ASSERT_TRUE(connector.Start().ok());
    EXPECT_EQ(Judge().status().code(), absl::StatusCode::kFailedPrecondition);
    acceptor_.reset();
    EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kAborted)
        << "its attempt is over; a hang-up would be tried again";
  }
}

TEST_F(HandshakeTest, AnotherProgramGetsNoAnswer) {
  Hello other_program = GreetingOf(7);
  other_program.magic[7] = '9';
  Say(other_program);
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kFailedPrecondition);
  char answer;
  EXPECT_LT(::recv(peer_.get(), &answer, 1, MSG_DONTWAIT), 0);
}

TEST_F(HandshakeTest, APeerThatHangsUpBeforeItsChallengeIsUnavailable) {
  ConnectorHandshake connector(peer_.get(), kShared, GreetingOf(7));
  ASSERT_TRUE(connector.Start().ok());
  acceptor_.reset();  // with a greeting that it has not read: a reset
  EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HandshakeTest, APeerThatHangsUpBeforeItsVerdictIsUnavailable) {
  ConnectorHandshake connector(peer_.get(), kShared, GreetingOf(7));
  ASSERT_TRUE(connector.Start().ok());
  EXPECT_EQ(Judge().value(), false);
  EXPECT_EQ(connector.Advance().value(), false);
  EXPECT_EQ(Judge().value(), true);
  acceptor_.reset();
  EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HandshakeTest, AProvenPeerThatSharesNoGroupIsToldSo) {
  ConnectorHandshake connector(peer_.get(), kShared, GreetingOf(7));
  ASSERT_TRUE(connector.Start().ok());
  EXPECT_EQ(Judge().value(), false);
  EXPECT_EQ(connector.Advance().value(), false);
  EXPECT_EQ(Judge().value(), true);
  ASSERT_TRUE(acceptor_->Answer(Verdict::kNoSuchGroup).ok());
  EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kInternal);
}

TEST_F(HandshakeTest, AWrongSecretAndAnOlderAttemptsAreRefusedByBothSides) {
  for (const char* secret : {kOlderSecret, "", "the secret of attempt 7, 32 bytf"}) {
    Meet();
    const Hello hello = GreetingOf(7);
    Say(hello);
    EXPECT_EQ(Judge().value(), false);
    const auto challenge = Hear<Challenge>();
    Say(MakeProof({secret, kShared.address}, Side::kConnector, hello, challenge.nonce));
    EXPECT_EQ(Judge().status().code(), absl::StatusCode::kPermissionDenied);

    Meet();
    ConnectorHandshake connector(peer_.get(), {secret, kShared.address}, GreetingOf(7));
    ASSERT_TRUE(connector.Start().ok());
    EXPECT_EQ(Judge().value(), false);
    EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kPermissionDenied);
  }
}

TEST_F(HandshakeTest, ARecordedHandshakeOpensNothing) {
  const Hello hello = GreetingOf(7);
  Say(hello);
  EXPECT_EQ(Judge().value(), false);
  const auto challenge = Hear<Challenge>();
  const Digest proof = MakeProof(kShared, Side::kConnector, hello, challenge.nonce);
  Say(proof);
  EXPECT_EQ(Judge().value(), true);

  Meet();  // the same bytes, at another time
  Say(hello);
  EXPECT_EQ(Judge().value(), false);
  const auto fresh = Hear<Challenge>();
  EXPECT_NE(fresh.nonce, challenge.nonce);
  Say(proof);
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(HandshakeTest, AnAcceptorsOwnProofSentBackIsRefused) {
  Say(GreetingOf(7));
  EXPECT_EQ(Judge().value(), false);
  Say(Hear<Challenge>().proof);
  EXPECT_EQ(Judge().status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(HandshakeTest, AnAcceptorThatReplaysAnOldChallengeIsRefused) {
  const Hello before = GreetingOf(7);
  Say(before);
  EXPECT_EQ(Judge().value(), false);
  const auto recorded = Hear<Challenge>();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const base::UniqueFd mine(ends[0]);
  const base::UniqueFd impostor(ends[1]);
  ConnectorHandshake connector(mine.get(), kShared, GreetingOf(7));  // a fresh random number
  ASSERT_TRUE(connector.Start().ok());
  ASSERT_EQ(::send(impostor.get(), &recorded, sizeof(recorded), MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof(recorded)));
  EXPECT_EQ(connector.Advance().status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace megascale::comm
