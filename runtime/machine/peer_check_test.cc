// Members in threads, over real sockets: Unix sockets and TCP.
#include "runtime/machine/peer_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"

namespace megascale::machine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBlock = 64 << 10;

class PeerCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/ms-peer-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  PeerOptions OptionsOf(int member, int num_members) {
    PeerOptions options;
    options.exchange.set_group("group");
    for (int i = 0; i < num_members; ++i) options.exchange.add_node_ids(absl::StrCat("n", i));
    options.exchange.set_member(member);
    options.exchange.set_secret("0123456789abcdef");
    options.exchange.set_volume_bytes(4 * kBlock);
    options.exchange.mutable_time_max()->set_seconds(60);
    options.socket_directory = directory_;
    options.block_bytes = kBlock;
    stores_.push_back(std::make_unique<comm::LinkStore>(
        comm::LinkStoreOptions{"group", 1, absl::StrCat("member-", member), absl::Seconds(30)},
        [this, place = stores_.size()](const megascale::agent::v1::StoreRequest& request) {
          store_.Handle(request,
                        [this, place](const auto& reply) { stores_[place]->OnReply(reply); });
          return absl::OkStatus();
        }));
    options.store = stores_.back().get();
    return options;
  }

  // Runs all members at once and returns their results, in order.
  static std::vector<PeerResult> Exchange(const std::vector<PeerOptions>& members) {
    std::vector<PeerResult> results(members.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = CheckPeers(members[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  std::string directory_;
  comm::EmbeddedStore store_;
  std::vector<std::unique_ptr<comm::LinkStore>> stores_;
};

TEST_F(PeerCheckTest, TwoMachinesExchangeAndMeasureRateAndLatency) {
  const std::vector<PeerResult> results = Exchange({OptionsOf(0, 2), OptionsOf(1, 2)});
  for (const PeerResult& result : results) {
    EXPECT_THAT(result.part.failure, IsEmpty());
    EXPECT_THAT(result.part.note, IsEmpty());
    EXPECT_GT(result.part.bytes_per_second, 0);
  }
  EXPECT_GT(results[0].latency_seconds, 0) << "member 0 measures it";
  EXPECT_EQ(results[1].latency_seconds, 0);
}

TEST_F(PeerCheckTest, MachinesOnANetworkExchangeOverTheInterfaceOfTheirRanks) {
  std::vector<PeerOptions> members = {OptionsOf(0, 2), OptionsOf(1, 2)};
  for (PeerOptions& member : members) {
    member.socket_directory.clear();
    member.interface = "127.0.0.1";
  }
  for (const PeerResult& result : Exchange(members)) {
    EXPECT_THAT(result.part.failure, IsEmpty());
    EXPECT_GT(result.part.bytes_per_second, 0);
  }
}

TEST_F(PeerCheckTest, AGroupExchangesAllToAll) {
  const std::vector<PeerResult> results =
      Exchange({OptionsOf(0, 3), OptionsOf(1, 3), OptionsOf(2, 3)});
  for (const PeerResult& result : results) {
    EXPECT_THAT(result.part.failure, IsEmpty());
    EXPECT_GT(result.part.bytes_per_second, 0);
  }
}

TEST_F(PeerCheckTest, AByteThatChangedOnItsWayIsFoundByTheReceiverAndTheOtherGoesOn) {
  std::vector<PeerOptions> members = {OptionsOf(0, 2), OptionsOf(1, 2)};
  int num_blocks = 0;
  members[1].tamper = [&num_blocks](void* data, size_t size_bytes) {
    if (++num_blocks == 2) static_cast<unsigned char*>(data)[size_bytes - 1] ^= 4;
  };
  const std::vector<PeerResult> results = Exchange(members);
  EXPECT_THAT(results[0].part.failure, IsEmpty());
  EXPECT_THAT(results[1].part.failure,
              AllOf(HasSubstr("block 1 from n0: 1 byte of "), HasSubstr("at byte 65535")));
  EXPECT_FALSE(results[1].peer_missing);
}

// A link that repeats what it sent before would pass if all blocks were equal.
TEST_F(PeerCheckTest, ABlockOfTheRoundBeforeIsFound) {
  std::vector<PeerOptions> members = {OptionsOf(0, 2), OptionsOf(1, 2)};
  std::vector<char> before;
  members[1].tamper = [&before](void* data, size_t size_bytes) {
    auto* bytes = static_cast<char*>(data);
    if (before.empty()) before.assign(bytes, bytes + size_bytes);
    std::copy(before.begin(), before.end(), bytes);
  };
  EXPECT_THAT(Exchange(members)[1].part.failure, HasSubstr("block 1 from n0"));
}

TEST_F(PeerCheckTest, AMachineThatDoesNotAnswerFailsTheExchangeWithItsName) {
  for (const int member : {0, 1}) {  // that connects, and that listens
    PeerOptions options = OptionsOf(member, 2);
    options.connect_timeout = absl::Milliseconds(200);
    const PeerResult result = CheckPeers(options);
    EXPECT_THAT(result.part.failure, HasSubstr(absl::StrCat("n", 1 - member, " does not connect")));
    EXPECT_TRUE(result.peer_missing);
    EXPECT_THAT(result.part.note, IsEmpty());
  }
}

// The driver, the agent or the way to them is at fault, or the exchange was given up.
TEST_F(PeerCheckTest, AStoreThatFailsSaysNothingAboutThePair) {
  for (const int member : {0, 1}) {  // that reads the address of the other, and that tells its own
    PeerOptions options = OptionsOf(member, 2);
    stores_.back()->Close(absl::UnavailableError("the link to the agent has ended"));
    const PeerResult result = CheckPeers(options);
    EXPECT_THAT(result.part.failure, IsEmpty());
    EXPECT_THAT(result.part.note, HasSubstr("the link to the agent has ended"));
  }
  store_.DropAttemptsBefore("group", 2);
  for (const int member : {0, 1}) {
    const PeerResult result = CheckPeers(OptionsOf(member, 2));
    EXPECT_THAT(result.part.failure, IsEmpty());
    EXPECT_THAT(result.part.note, HasSubstr("not tested: "));
  }
}

TEST_F(PeerCheckTest, AStoreThatDoesNotAnswerSaysNothingAboutThePair) {
  PeerOptions options = OptionsOf(1, 2);
  comm::LinkStore silent({"group", 1, "member-1", absl::Milliseconds(50)},
                         [](const auto&) { return absl::OkStatus(); });
  options.store = &silent;
  const PeerResult result = CheckPeers(options);
  EXPECT_THAT(result.part.failure, IsEmpty());
  EXPECT_THAT(result.part.note, HasSubstr("no answer within 50ms"));
}

TEST_F(PeerCheckTest, AMachineThatDoesNotKnowTheSecretIsRefused) {
  std::vector<PeerOptions> members = {OptionsOf(0, 2), OptionsOf(1, 2)};
  members[1].exchange.set_secret("another secret, as long");
  for (PeerOptions& member : members) member.connect_timeout = absl::Seconds(1);
  for (const PeerResult& result : Exchange(members)) {
    EXPECT_THAT(result.part.failure, HasSubstr("does not connect"));
  }
}

TEST_F(PeerCheckTest, AMachineThatCannotListenIsNotTested) {
  PeerOptions options = OptionsOf(1, 2);
  options.socket_directory = directory_ + "/missing";
  const PeerResult result = CheckPeers(options);
  EXPECT_THAT(result.part.failure, IsEmpty());
  EXPECT_THAT(result.part.note, HasSubstr("not tested: "));
}

TEST_F(PeerCheckTest, ASlowExchangeEndsByItsTimeAndItsRateIsKnown) {
  std::vector<PeerOptions> members = {OptionsOf(0, 2), OptionsOf(1, 2)};
  for (PeerOptions& member : members) {
    member.exchange.set_volume_bytes(int64_t{1} << 50);
    member.exchange.mutable_time_max()->set_seconds(0);
  }
  for (const PeerResult& result : Exchange(members)) {
    EXPECT_THAT(result.part.failure, IsEmpty());
    EXPECT_GT(result.part.bytes_per_second, 0);
  }
}

TEST_F(PeerCheckTest, ThePartIsNamedAfterTheOthers) {
  EXPECT_EQ(PartNameOf(OptionsOf(1, 3).exchange), "exchange with n0, n2");
}

}  // namespace
}  // namespace megascale::machine
