// A rank that connects to crowds: what it does grows with its peers, and not faster. One thread
// plays all of them. fabric_test.cc tests single peers.
#include "runtime/comm/host/connect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/handshake.h"
#include "runtime/comm/host/socket_address.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"

namespace megascale::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kSecret[] = "a secret of sixteen";

// One rank that connects on a thread, and the store in which it and its peers publish addresses.
class CrowdTest : public ::testing::Test {
 protected:
  CrowdTest() {
    char directory[] = "/tmp/ms-crowd-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    LinkStoreOptions options = {.job_id = "job", .attempt = 1, .client = "crowd"};
    store_ = std::make_unique<LinkStore>(options, [this](const auto& request) {
      ++num_requests_;
      core_.Handle(request, [this](const auto& reply) { store_->OnReply(reply); });
      return absl::OkStatus();
    });
  }
  ~CrowdTest() override {
    if (thread_.joinable()) thread_.join();
    std::filesystem::remove_all(directory_);
  }

  // Connects `rank` to all other ranks below `num_ranks`.
  void Connect(int rank, int num_ranks, absl::Duration timeout = absl::Seconds(60)) {
    num_looks_ = 0;
    num_requests_ = 0;
    thread_ = std::thread([this, rank, num_ranks, timeout] {
      ConnectOptions options;
      options.rank = rank;
      options.job_id = "job";
      options.attempt = 1;
      options.secret = kSecret;
      options.store = store_.get();
      options.socket_directory = directory_;
      options.timeout = timeout;
      options.cancelled = &cancelled_;
      options.num_looks = &num_looks_;
      std::vector<StreamRequest> requests;
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != rank) requests.push_back({"all", peer});
      }
      auto streams = ConnectStreams(options, requests);
      status_ = streams.status();
      if (streams.ok()) streams_ = *std::move(streams);
    });
  }
  absl::Status End() {
    thread_.join();
    return status_;
  }
  void Publish(int rank, const std::string& address) {
    ASSERT_TRUE(store_->Set(absl::StrCat("address/", rank), address).ok());
  }
  ListeningSocket Listen(const std::string& name) {
    return ListeningSocket::ListenUnix(directory_, name).value();
  }

  static void AwaitReadable(int fd) {
    pollfd polled = {fd, POLLIN, 0};
    ASSERT_EQ(::poll(&polled, 1, 30'000), 1);
  }
  template <typename Handshake>
  static void Finish(Handshake& handshake, int socket) {
    for (;;) {
      const absl::StatusOr<bool> is_proven = handshake.Advance();
      ASSERT_TRUE(is_proven.ok()) << is_proven.status();
      if (*is_proven) return;
      AwaitReadable(socket);
    }
  }
  // Lets one connector in, as the rank that it asks for.
  base::UniqueFd Welcome(const ListeningSocket& listening) {
    AwaitReadable(listening.fd());
    base::UniqueFd socket(
        ::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    Hello hello;
    do {
      AwaitReadable(socket.get());
    } while (::recv(socket.get(), &hello, sizeof(hello), MSG_PEEK) <
             static_cast<ssize_t>(sizeof(hello)));
    AcceptorHandshake handshake(std::move(socket), {kSecret, listening.address()}, hello);
    Finish(handshake, handshake.socket());
    EXPECT_EQ(handshake.Answer(Verdict::kWelcome), absl::OkStatus());
    return handshake.Release();
  }
  // Comes as `rank` to `to`.
  base::UniqueFd Come(int rank, int to, const std::string& address) {
    base::UniqueFd socket = StartConnect(address).value();
    Hello hello = MakeHello("job", 1, "all").value();
    hello.from_rank = rank;
    hello.to_rank = to;
    ConnectorHandshake handshake(socket.get(), {kSecret, address}, hello);
    EXPECT_EQ(handshake.Start(), absl::OkStatus());
    Finish(handshake, socket.get());
    return socket;
  }

  // Connects a rank to `num_peers` higher ones, or to as many lower ones. Returns how often it
  // looked at a socket.
  int64_t LooksAtHigher(int num_peers) {
    constexpr size_t kQueued = 500;  // fewer than the queue of a socket takes
    std::vector<ListeningSocket> listening;
    const auto socket_of = [&](int peer) -> const ListeningSocket& {
      const size_t index = static_cast<size_t>(peer) / kQueued;
      while (listening.size() <= index) listening.push_back(Listen(absl::StrCat(listening.size())));
      return listening[index];
    };
    for (int peer = 1; peer <= num_peers; ++peer) Publish(peer, socket_of(peer).address());
    Connect(0, num_peers + 1, absl::Minutes(5));
    std::vector<base::UniqueFd> sockets;
    for (int peer = 1; peer <= num_peers; ++peer) {
      sockets.push_back(Welcome(socket_of(peer)));
      if (HasFailure()) break;
    }
    EXPECT_EQ(End(), absl::OkStatus());
    EXPECT_EQ(num_requests_, 1) << "all addresses at once";
    EXPECT_EQ(streams_.size(), sockets.size());
    return num_looks_;
  }
  int64_t LooksAtLower(int num_peers) {
    Connect(num_peers, num_peers + 1, absl::Minutes(5));
    const std::string address =
        store_->Wait(absl::StrCat("address/", num_peers), absl::Seconds(30)).value();
    std::vector<base::UniqueFd> sockets;
    for (int peer = 0; peer < num_peers && !HasFailure(); ++peer) {
      sockets.push_back(Come(peer, num_peers, address));
    }
    EXPECT_EQ(End(), absl::OkStatus());
    return num_looks_;
  }
  // The larger crowd. Each peer takes two descriptors of this process.
  static int LargeCrowd() {
    const auto limit = static_cast<int>(std::min<int64_t>(base::RaiseDescriptorLimit(), 100'000));
    return std::min(4000, (limit - 100) / 2);
  }

  std::string directory_;
  EmbeddedStore core_;
  std::unique_ptr<LinkStore> store_;
  std::atomic<int> num_requests_ = 0;
  std::atomic<bool> cancelled_{false};
  int64_t num_looks_ = 0;
  std::thread thread_;
  absl::Status status_ = absl::UnknownError("was not run");
  std::vector<base::UniqueFd> streams_;
};

TEST_F(CrowdTest, TheWorkForAPeerDoesNotGrowWithTheirNumber) {
  constexpr int kSmall = 500;
  const int large = LargeCrowd();
  for (const bool is_lower : {true, false}) {
    const auto looks = [&](int count) {
      return static_cast<double>(is_lower ? LooksAtLower(count) : LooksAtHigher(count)) / count;
    };
    const double of_small = looks(kSmall);
    EXPECT_LE(looks(large), 1.3 * of_small) << "for each peer";
    EXPECT_LE(of_small, 6);
  }
}

TEST_F(CrowdTest, ARankThatDiesWhileOthersConnectIsNamed) {
  constexpr int kPeers = 500;
  constexpr int kDead = 317;
  const ListeningSocket listening = Listen("crowd");
  for (int peer = 1; peer <= kPeers; ++peer) Publish(peer, listening.address());
  Publish(kDead, Listen("dead").address());  // nobody listens there any more
  Connect(0, kPeers + 1);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(BlamedRanks(status), ElementsAre(kDead));
}

TEST_F(CrowdTest, RanksThatNeverPublishAreNamedAndNoOthers) {
  const ListeningSocket listening = Listen("crowd");
  for (const int peer : {1, 2, 4, 5}) Publish(peer, listening.address());
  Connect(0, 8, absl::Milliseconds(200));
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(BlamedRanks(status), ElementsAre(3, 6, 7));
  EXPECT_THAT(std::string(status.message()), HasSubstr("address of rank(s) 3, 6, 7: "));
}

}  // namespace
}  // namespace megascale::comm
