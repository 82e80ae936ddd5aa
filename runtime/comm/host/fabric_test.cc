// Who may join: regions, secrets, attempts, strangers, socket directories, and peers that come
// again.
#include "runtime/comm/host/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/testing/test_user.h"
#include "runtime/comm/host/connect.h"
#include "runtime/comm/host/handshake.h"
#include "runtime/comm/host/socket_address.h"
#include "runtime/comm/testing/test_world.h"

namespace megascale::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kRingBytes = 4096;

// Connects rank 0 and rank 1, on two nodes, with options that `change` has touched.
std::vector<absl::Status> ConnectTwo(const std::function<void(int, FabricOptions&)>& change) {
  const WorldSpec spec = OneGroup(2, 2, kRingBytes);
  ThreadWorld world(spec);
  std::vector<absl::Status> results(2);
  world.Run([&](int rank) {
    FabricOptions options = world.OptionsOf(rank);
    options.connect_timeout = absl::Milliseconds(500);
    change(rank, options);
    auto fabric = Fabric::Create(options, spec.groups);
    results[rank] = fabric.ok() ? (*fabric)->Connect() : fabric.status();
  });
  return results;
}

RegionSpec SpecOf(const WorldSpec& world, const std::string& job, int64_t attempt) {
  return {world.groups, world.placements, "node-0", job, attempt};
}

TEST(RegionTest, IsRefusedUnlessItWasMadeForThisJobAttemptAndGroups) {
  const WorldSpec world = OneGroup(4, 2, kRingBytes);
  const size_t size = RegionBytes(world.groups, world.placements, "node-0");
  auto memory = base::SharedMemory::Create("region", size).value();
  const auto refused = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(RegionLayout::Attach(SpecOf(world, "job", 1), *memory).status().code(), refused);
  ASSERT_EQ(FormatRegion(SpecOf(world, "job", 1), *memory), absl::OkStatus());
  EXPECT_TRUE(RegionLayout::Attach(SpecOf(world, "job", 1), *memory).ok());
  EXPECT_EQ(RegionLayout::Attach(SpecOf(world, "job", 2), *memory).status().code(), refused);
  EXPECT_EQ(RegionLayout::Attach(SpecOf(world, "other", 1), *memory).status().code(), refused);
  WorldSpec changed = world;
  changed.groups[0].ranks = {0, 2, 1, 3};
  EXPECT_EQ(RegionLayout::Attach(SpecOf(changed, "job", 1), *memory).status().code(), refused);
  auto small = base::SharedMemory::Create("region", size - 4096).value();
  EXPECT_EQ(FormatRegion(SpecOf(world, "job", 1), *small).code(), refused);
}

TEST(RegionTest, FormattingAgainForgetsTheAttemptBefore) {
  const WorldSpec world = OneGroup(2, 1, kRingBytes);
  auto memory =
      base::SharedMemory::Create("region", RegionBytes(world.groups, world.placements, "node-0"))
          .value();
  for (const int64_t attempt : {1, 2}) {
    ASSERT_EQ(FormatRegion(SpecOf(world, "job", attempt), *memory), absl::OkStatus());
    auto layout = RegionLayout::Attach(SpecOf(world, "job", attempt), *memory).value();
    EXPECT_EQ(layout.Slot(0, 1)->state.load(), PeerState::kAbsent);
    EXPECT_TRUE(layout.RingBetween(0, 0, 1).ReadableSpan().empty());
    layout.Slot(0, 1)->state = PeerState::kOpen;
    layout.RingBetween(0, 0, 1).CommitWritten(64);
  }
}

TEST(RegionTest, RingsWindowsAndSlotsDoNotOverlap) {
  const WorldSpec world = OneGroup(3, 1, kRingBytes);
  auto memory =
      base::SharedMemory::Create("region", RegionBytes(world.groups, world.placements, "node-0"))
          .value();
  ASSERT_EQ(FormatRegion(SpecOf(world, "job", 1), *memory), absl::OkStatus());
  auto layout = RegionLayout::Attach(SpecOf(world, "job", 1), *memory).value();
  std::vector<Ring> rings;
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      rings.push_back(from == to ? layout.WindowOf(0, from) : layout.RingBetween(0, from, to));
    }
  }
  for (const bool is_first : {true, false}) {
    for (size_t i = 0; i < rings.size(); ++i) {
      const auto room = rings[i].WritableSpan();
      ASSERT_EQ(room.size(), kRingBytes / 2);
      for (std::byte& byte : room) {
        if (is_first) byte = std::byte(i + 1);
        ASSERT_EQ(byte, std::byte(i + 1));
      }
    }
  }
  EXPECT_EQ(layout.Slot(0, 2)->doorbell.Count(), 0u);
}

TEST(RegionTest, AWindowHasRoomOnceAllItsReadersHaveRead) {
  const WorldSpec world = OneGroup(3, 1, 256);
  auto memory =
      base::SharedMemory::Create("region", RegionBytes(world.groups, world.placements, "node-0"))
          .value();
  ASSERT_EQ(FormatRegion(SpecOf(world, "job", 1), *memory), absl::OkStatus());
  auto layout = RegionLayout::Attach(SpecOf(world, "job", 1), *memory).value();
  const Ring window = layout.WindowOf(0, 1);
  window.CommitWritten(128);
  EXPECT_TRUE(window.WritableSpan().empty());
  const Ring first = layout.WindowOf(0, 1, 0);
  const Ring last = layout.WindowOf(0, 1, 2);
  EXPECT_TRUE(first.CommitRead(128));
  EXPECT_TRUE(window.WritableSpan().empty());
  EXPECT_FALSE(window.Blocks(0));
  EXPECT_TRUE(window.Blocks(1));
  EXPECT_EQ(last.ReadableSpan().size(), 128u);
  EXPECT_TRUE(last.CommitRead(64));
  EXPECT_EQ(window.WritableSpan().size(), 64u);
}

TEST(RegionTest, OnlyGroupsOfOneNodeHaveWindowsAndTheyCostNoMoreThanPagesOfControl) {
  for (int num_ranks = 2; num_ranks <= 8; ++num_ranks) {
    const WorldSpec together = OneGroup(num_ranks, 1, 512 << 10);
    const size_t pairs = num_ranks * (num_ranks - 1);
    EXPECT_LE(RegionBytes(together.groups, together.placements, "node-0"),
              pairs * (512 << 10) + num_ranks * (num_ranks + 2) * 4096);
  }
  const WorldSpec apart = OneGroup(4, 2, kRingBytes);
  auto memory =
      base::SharedMemory::Create("region", RegionBytes(apart.groups, apart.placements, "node-0"))
          .value();
  ASSERT_EQ(FormatRegion(SpecOf(apart, "job", 1), *memory), absl::OkStatus());
  auto layout = RegionLayout::Attach(SpecOf(apart, "job", 1), *memory).value();
  EXPECT_FALSE(layout.WindowOf(0, 0));
  EXPECT_FALSE(layout.WindowOf(0, 0, 2));
  EXPECT_EQ(layout.RingBetween(0, 0, 2).capacity(), kRingBytes);
}

TEST(RegionTest, EveryPeerOnAnotherNodeCostsARingEachWayInEveryGroup) {
  WorldSpec world = OneGroup(4, 2, kRingBytes);  // ranks 0 and 2 on one node, 1 and 3 on the other
  const size_t ring = PrivateRing::BytesFor(kRingBytes);
  EXPECT_GT(ring, kRingBytes);
  const auto bytes = [&](int rank) { return StreamBytes(world.groups, world.placements, rank); };
  for (const int rank : {0, 1, 2, 3}) EXPECT_EQ(bytes(rank), 2 * 2 * ring);
  world.groups.push_back({"local", {0, 2}, kRingBytes});
  EXPECT_EQ(bytes(0), 2 * 2 * ring);
  world.groups.push_back({"pair", {0, 3}, kRingBytes});
  EXPECT_EQ(bytes(0), 3 * 2 * ring);
  EXPECT_EQ(bytes(1), 2 * 2 * ring);
}

TEST(RegionTest, GroupsThatMakeNoSenseAreRefused) {
  const std::vector<std::string> placements = {"a", "b"};
  const auto code = [&](const std::vector<GroupSpec>& groups) {
    return ValidateGroups(groups, placements).code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({{"g", {0, 1}}}), absl::StatusCode::kOk);
  EXPECT_EQ(code({{"g", {0}}, {"g", {1}}}), invalid);
  EXPECT_EQ(code({{"", {0}}}), invalid);
  EXPECT_EQ(code({{"g", {}}}), invalid);
  EXPECT_EQ(code({{"g", {0, 0}}}), invalid);
  EXPECT_EQ(code({{"g", {0, 2}}}), invalid);
  EXPECT_EQ(code({{"g", {0, 1}, 100}}), invalid);
}

TEST(FabricTest, ARankAttachesOncePerAttempt) {
  ThreadWorld world(OneGroup(2, 1, kRingBytes));
  const auto groups = OneGroup(2, 1, kRingBytes).groups;
  auto first = Fabric::Create(world.OptionsOf(0), groups);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Fabric::Create(world.OptionsOf(0), groups).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*first)->Make("all").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FabricTest, RanksOfANodeCanReadEachOthersMemoryOnceTheyHaveMet) {
  const WorldSpec spec = OneGroup(4, 2, kRingBytes);
  ThreadWorld world(spec);
  world.RunConnected([&](int rank, Fabric& fabric) {
    auto comm = fabric.Make("all").value();
    for (int i = 0; i < 2; ++i) ASSERT_EQ(comm->Barrier({}), absl::OkStatus());
    if (rank % 2 != 0) return;
    const auto layout = RegionLayout::Attach(SpecOf(spec, "job", 7), *world.OptionsOf(0).region);
    ASSERT_TRUE(layout.ok());
    const int peer = 2 - rank;
    EXPECT_EQ(layout->Slot(0, peer)->readable.load(), uint64_t{1} << rank);
  });
}

TEST(FabricTest, APeerWithAnotherSecretIsRefused) {
  const auto results = ConnectTwo([](int rank, FabricOptions& options) {
    if (rank == 0) options.secret = "another secret of 26 bytes";
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kPermissionDenied) << results[0];
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1 of group all"));
  EXPECT_EQ(results[1].code(), absl::StatusCode::kDeadlineExceeded) << results[1];
  EXPECT_THAT(BlamedRanks(results[1]), ElementsAre(0));
}

TEST(FabricTest, APeerOfAnotherAttemptOrJobIsRefused) {
  for (const bool other_attempt : {true, false}) {
    const WorldSpec spec = OneGroup(2, 2, kRingBytes);
    const std::string job = other_attempt ? "job" : "other";
    const int64_t attempt = other_attempt ? 8 : 7;
    auto region =
        base::SharedMemory::Create("region", RegionBytes(spec.groups, spec.placements, "node-0"))
            .value();
    ASSERT_EQ(FormatRegion(SpecOf(spec, job, attempt), *region), absl::OkStatus());
    const auto results = ConnectTwo([&](int rank, FabricOptions& options) {
      if (rank == 1) return;
      options.region = region.get();
      options.job_id = job;
      options.attempt = attempt;
    });
    EXPECT_EQ(results[0].code(), absl::StatusCode::kAborted) << results[0];
    EXPECT_THAT(BlamedRanks(results[0]), ElementsAre(1));
    EXPECT_EQ(results[1].code(), absl::StatusCode::kDeadlineExceeded) << results[1];
  }
}

TEST(FabricTest, ARankThatNeverComesIsNamed) {
  const auto results = ConnectTwo([](int rank, FabricOptions& options) {
    if (rank == 0) options.region = nullptr;  // fails at once
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(results[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(results[1].message()), HasSubstr("not connected: rank(s) 0"));
}

TEST(FabricTest, StrangersAtTheDoorDisturbNobody) {
  const WorldSpec spec = OneGroup(2, 2, kRingBytes);
  ThreadWorld world(spec);
  std::vector<base::UniqueFd> strangers;
  std::atomic<uint32_t> have_come{0};
  world.Run([&](int rank) {
    auto fabric = Fabric::Create(world.OptionsOf(rank), spec.groups).value();
    if (rank == 0) {
      // The listener publishes its address; strangers find it too.
      const std::string address =
          world.OptionsOf(0).store->Wait("address/1", absl::Seconds(10)).value();
      for (int i = 0; i < 20; ++i) strangers.push_back(StartConnect(address).value());
      ASSERT_TRUE(base::WriteAll(strangers[0].get(), std::string(500, 'x')).ok());
      ASSERT_TRUE(base::WriteAll(strangers[1].get(), "MGSCOMM1").ok());
    }
    ASSERT_EQ(fabric->Connect(), absl::OkStatus());
    EXPECT_EQ(fabric->Make("all").value()->Barrier({}), absl::OkStatus());
  });
  EXPECT_TRUE(std::filesystem::is_empty(world.socket_directory())) << "sockets' names vanish";
}

TEST(FabricTest, SocketDirectoriesThatAreOpenOrTooLongAreRefused) {
  const auto status_with = [](mode_t mode, size_t length) {
    std::string directory;
    const auto results = ConnectTwo([&](int rank, FabricOptions& options) {
      options.connect_timeout = absl::Milliseconds(100);
      if (rank == 0) return;
      options.socket_directory =
          absl::StrCat(options.socket_directory, "/", std::string(length, 'd'));
      EXPECT_EQ(::mkdir(options.socket_directory.c_str(), mode), 0);
      EXPECT_EQ(::chmod(options.socket_directory.c_str(), mode), 0);
    });
    return results[1];
  };
  EXPECT_EQ(status_with(0755, 5).code(), absl::StatusCode::kPermissionDenied);
  const absl::Status too_long = status_with(0700, 100);
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("107 bytes"));
}

TEST(FabricTest, ListenersOfAnotherUserGetNothing) {
  std::string directory = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  ASSERT_EQ(::chmod(directory.c_str(), 01777), 0);
  ASSERT_EQ(::mkdir((directory + "/ours").c_str(), 0700), 0);
  for (const bool only_the_process : {false, true}) {
    const std::string path = directory + (only_the_process ? "/ours/c-1" : "/theirs/c-1");
    base::OtherUsersListener listener(path, only_the_process);
    const absl::Status refused = StartConnect("unix " + path).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
    EXPECT_EQ(listener.Stop(), 0);
  }
  EXPECT_EQ(ListeningSocket::ListenUnix(directory + "/theirs", "c-2").status().code(),
            absl::StatusCode::kPermissionDenied);
  std::filesystem::remove_all(directory);
}

TEST(FabricTest, ConnectionsOfAnotherUserAreDropped) {
  std::string directory = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const ListeningSocket listening = ListeningSocket::ListenUnix(directory, "c-1").value();
  const std::string path = directory + "/c-1";
  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);  // another user changes the mode later
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(base::ConnectAsOtherUser(path), 0);
  const base::UniqueFd accepted(::accept(listening.fd(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(CheckAccepted(accepted.get(), listening.address()).code(),
            absl::StatusCode::kPermissionDenied);
  std::filesystem::remove_all(directory);
}

TEST(FabricTest, TcpBindsOneInterfaceOnly) {
  for (const char* address : {"0.0.0.0", "::", "localhost"}) {
    EXPECT_EQ(ListeningSocket::ListenTcp(address).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  const ListeningSocket listening = ListeningSocket::ListenTcp("127.0.0.2").value();
  sockaddr_in bound = {};
  socklen_t size = sizeof(bound);
  ASSERT_EQ(::getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  EXPECT_EQ(bound.sin_family, AF_INET);
  EXPECT_EQ(ntohl(bound.sin_addr.s_addr), INADDR_LOOPBACK + 1);
  EXPECT_EQ(listening.address(), absl::StrCat("tcp 127.0.0.2 ", ntohs(bound.sin_port)));
  const auto results = ConnectTwo([](int rank, FabricOptions& options) {
    options.socket_directory.clear();
    options.tcp_address = rank == 0 ? "" : "127.0.0.1";
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument)
      << "neither directory nor address";
}

// Passes the bytes of connections on to another address and keeps a copy: whoever can overwrite an
// address in the store can put such a relay between two ranks. One thread.
class Relay {
 public:
  Relay() : listening_(ListeningSocket::ListenTcp("127.0.0.1").value()) {}
  ~Relay() { Stop(); }
  const std::string& address() const { return listening_.address(); }
  void Start(std::string target) {
    thread_ = std::thread([this, target = std::move(target)] {
      while (!stopping_) Serve(target);
    });
  }
  // Returns what came from either side.
  const std::string& Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return carried_;
  }

 private:
  static bool IsReadable(int fd) {
    pollfd polled = {fd, POLLIN, 0};
    return ::poll(&polled, 1, 5) == 1;
  }
  void Serve(const std::string& target) {
    if (!IsReadable(listening_.fd())) return;
    const base::UniqueFd rank(::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    const base::UniqueFd peer = StartConnect(target).value();
    while (!stopping_ && Carry(rank.get(), peer.get()) && Carry(peer.get(), rank.get())) {
    }
  }
  bool Carry(int from, int to) {
    if (!IsReadable(from)) return true;
    char bytes[4096];
    const ssize_t got = ::recv(from, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    carried_.append(bytes, static_cast<size_t>(got));
    return base::WriteAll(to, absl::string_view(bytes, static_cast<size_t>(got))).ok();
  }

  const ListeningSocket listening_;
  std::atomic<bool> stopping_{false};
  std::string carried_;
  std::thread thread_;
};

// A rank's store in which its address is overwritten with that of a relay.
class RelayedStore : public Store {
 public:
  RelayedStore(Store* store, Relay* relay) : store_(*store), relay_(*relay) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    relay_.Start(value);
    return store_.Set(key, relay_.address());
  }
  absl::StatusOr<std::string> Get(const std::string& key) override { return store_.Get(key); }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount,
                              const std::string& request_id) override {
    return store_.Add(key, amount, request_id);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return store_.Wait(key, timeout);
  }
  absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                   absl::Duration timeout) override {
    return store_.WaitAll(keys, timeout);
  }
  absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(
      const std::vector<std::string>& keys) override {
    return store_.GetAll(keys);
  }

 private:
  Store& store_;
  Relay& relay_;
};

// Sends `text` from rank 0 to rank 1 through the relay, as far as the ranks accept each other.
std::vector<absl::Status> SendRelayed(bool binds_address, std::string text, Relay* relay) {
  WorldSpec spec = OneGroup(2, 2, kRingBytes);
  spec.uses_tcp = true;
  ThreadWorld world(spec);
  std::vector<absl::Status> results(2);
  world.Run([&](int rank) {
    FabricOptions options = world.OptionsOf(rank);
    RelayedStore store(options.store, relay);
    if (rank == 1) options.store = &store;
    options.binds_address = binds_address;
    if (binds_address) options.connect_timeout = absl::Milliseconds(500);
    auto fabric = Fabric::Create(options, spec.groups).value();
    results[rank] = fabric->Connect();
    if (!results[rank].ok()) return;
    auto comm = fabric->Make("all").value();
    std::string bytes = rank == 0 ? text : std::string(text.size(), ' ');
    const auto span = absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
    results[rank] = rank == 0 ? comm->Send(1, span, {}) : comm->Recv(0, span, {});
    EXPECT_EQ(bytes, text);
  });
  return results;
}

TEST(FabricTest, ARelayBetweenTwoRanksGetsNoStream) {
  Relay relay;
  const auto results = SendRelayed(/*binds_address=*/true, "weights that nobody may read", &relay);
  EXPECT_EQ(results[0].code(), absl::StatusCode::kPermissionDenied) << results[0];
  EXPECT_THAT(BlamedRanks(results[0]), ElementsAre(1));
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("may have changed the store"));
  EXPECT_EQ(results[1].code(), absl::StatusCode::kDeadlineExceeded) << results[1];
  EXPECT_EQ(relay.Stop().size(), sizeof(Hello) + sizeof(Challenge));
}

// What the test above would miss if its relay did not work.
TEST(FabricTest, RanksThatDoNotBindTheirAddressesAreReadByARelay) {
  Relay relay;
  const auto results = SendRelayed(/*binds_address=*/false, "weights of older ranks", &relay);
  EXPECT_EQ(results[0], absl::OkStatus());
  EXPECT_EQ(results[1], absl::OkStatus());
  EXPECT_THAT(relay.Stop(), HasSubstr("weights of older ranks"));
}

TEST(FabricTest, AbortEndsConnecting) {
  const WorldSpec spec = OneGroup(2, 2, kRingBytes);
  ThreadWorld world(spec);
  auto fabric = Fabric::Create(world.OptionsOf(1), spec.groups).value();
  std::thread other([&] { fabric->Abort(absl::CancelledError("stop")); });
  EXPECT_EQ(fabric->Connect().code(), absl::StatusCode::kAborted);
  other.join();
}

// One rank of three, each on a node of its own, connects on a thread; the test plays the others.
class ConnectTest : public ::testing::Test {
 protected:
  static constexpr int kStrangers = 300;  // more than a rank keeps

  ConnectTest() : world_(OneGroup(3, 3, kRingBytes)) {}
  ~ConnectTest() override { (void)End(); }

  void Connect(int rank, std::vector<int> peers) {
    thread_ = std::thread([this, rank, peers] {
      const FabricOptions from = world_.OptionsOf(rank);
      ConnectOptions options;
      options.rank = rank;
      options.job_id = from.job_id;
      options.attempt = from.attempt;
      options.secret = from.secret;
      options.store = from.store;
      options.socket_directory = from.socket_directory;
      options.timeout = absl::Seconds(20);
      options.reach_timeout = reach_timeout_;
      options.join_timeout = join_timeout_;
      options.cancelled = &cancelled_;
      options.stranger_patience = patience_;
      std::vector<StreamRequest> requests;
      for (const int peer : peers) requests.push_back({"all", peer});
      result_ = ConnectStreams(options, requests).status();
    });
  }
  absl::Status End() {
    if (thread_.joinable()) thread_.join();
    return result_;
  }

  ListeningSocket ListenAs(int rank) {
    auto listening =
        ListeningSocket::ListenUnix(world_.socket_directory(), absl::StrCat("test-", rank)).value();
    const std::string address = listening.address();
    EXPECT_TRUE(world_.OptionsOf(rank).store->Set(absl::StrCat("address/", rank), address).ok());
    return listening;
  }
  std::string AddressOf(int rank) {
    return world_.OptionsOf(0)
        .store->Wait(absl::StrCat("address/", rank), absl::Seconds(10))
        .value();
  }
  Hello HelloOf(int from_rank, int to_rank) {
    const FabricOptions options = world_.OptionsOf(from_rank);
    Hello hello = MakeHello(options.job_id, options.attempt, "all").value();
    hello.from_rank = from_rank;
    hello.to_rank = to_rank;
    return hello;
  }
  static base::UniqueFd AcceptAt(const ListeningSocket& listening) {
    AwaitReadable(listening.fd());
    return base::UniqueFd(
        ::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  // Meets the connector as `rank`.
  void WelcomeAt(const ListeningSocket& listening, int rank) {
    AcceptorHandshake handshake(AcceptAt(listening),
                                {world_.OptionsOf(rank).secret, listening.address()},
                                HelloOf(0, rank));
    ASSERT_EQ(Finish(handshake, handshake.socket()), absl::OkStatus());
    ASSERT_EQ(handshake.Answer(Verdict::kWelcome), absl::OkStatus());
    met_.push_back(handshake.Release());
  }
  // Greets `to_rank` as `from_rank`; Finish hears whether it is welcome.
  std::unique_ptr<ConnectorHandshake> Greet(int from_rank, int to_rank) {
    const std::string address = AddressOf(to_rank);
    met_.push_back(StartConnect(address).value());
    const Shared shared = {world_.OptionsOf(from_rank).secret, address};
    auto handshake = std::make_unique<ConnectorHandshake>(met_.back().get(), shared,
                                                          HelloOf(from_rank, to_rank));
    EXPECT_EQ(handshake->Start(), absl::OkStatus());
    return handshake;
  }
  template <typename Handshake>
  static absl::Status Finish(Handshake& handshake, int socket) {
    for (;;) {
      const absl::StatusOr<bool> is_proven = handshake.Advance();
      if (!is_proven.ok() || *is_proven) return is_proven.status();
      if (!AwaitReadable(socket)) return absl::DeadlineExceededError("no answer for ten seconds");
    }
  }
  void ComeAsStrangers(int to_rank) {
    const std::string address = AddressOf(to_rank);
    for (int i = 0; i < kStrangers; ++i) met_.push_back(StartConnect(address).value());
  }
  static bool AwaitReadable(int fd) {
    pollfd polled = {fd, POLLIN, 0};
    return ::poll(&polled, 1, 10'000) == 1;
  }

  ThreadWorld world_;
  std::atomic<bool> cancelled_{false};
  absl::Duration patience_ = absl::Seconds(60);
  absl::Duration reach_timeout_ = absl::InfiniteDuration();
  absl::Duration join_timeout_ = absl::InfiniteDuration();
  std::vector<base::UniqueFd> met_;  // sockets of those that the test plays
  std::thread thread_;
  absl::Status result_ = absl::UnknownError("was not run");
};

TEST_F(ConnectTest, AConnectorWhoseSocketIsDroppedTriesAgain) {
  const ListeningSocket listening = ListenAs(1);
  Connect(0, {1});
  for (int i = 0; i < 2; ++i) AcceptAt(listening).reset();
  WelcomeAt(listening, 1);
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ConnectTest, APeerThatHangsUpAndListensNoMoreIsGone) {
  {
    const ListeningSocket listening = ListenAs(1);
    Connect(0, {1});
    const base::UniqueFd accepted = AcceptAt(listening);
  }
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(BlamedRanks(status), ElementsAre(1));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of group all: hung up"));
}

// A listener whose queue is full drops packets, as a link does that swallows them.
class Swallower {
 public:
  Swallower() {
    socket_ = base::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_.get(), 0), 0);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    address_ = absl::StrCat("tcp 127.0.0.1 ", ntohs(address.sin_port));
    for (int i = 0; i < 2; ++i) fill_.push_back(StartConnect(address_).value());
    pollfd polled = {fill_[0].get(), POLLOUT, 0};
    ::poll(&polled, 1, 10'000);  // this one is in the queue
  }
  const std::string& address() const { return address_; }

 private:
  base::UniqueFd socket_;
  std::vector<base::UniqueFd> fill_;
  std::string address_;
};

TEST_F(ConnectTest, AMachineThatDoesNotAnswerIsToldFromARankThatDoesNotCome) {
  const Swallower swallower;
  reach_timeout_ = absl::Milliseconds(300);
  const auto store = world_.OptionsOf(0).store;
  ASSERT_TRUE(store->Set("address/2", swallower.address()).ok());
  const ListeningSocket listening = ListenAs(1);
  Connect(0, {1, 2});
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(UnreachedRanks(status), ElementsAre(2)) << "the queue of rank 1 took the connection";
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("rank 0 got no answer for 300ms from the machine of rank(s) 2 "
                                     "at ",
                                     swallower.address())));
}

// The kernel drops what comes for the socket of rank 1, as a link does that swallows packets; rank
// 2 reads nothing, but its kernel confirms what comes.
TEST_F(ConnectTest, AMachineThatConfirmsNothingEndsACallAndIsNamed) {
  std::vector<ListeningSocket> listening;
  for (const int rank : {1, 2}) {
    listening.push_back(ListeningSocket::ListenTcp("127.0.0.1").value());
    const std::string key = absl::StrCat("address/", rank);
    ASSERT_TRUE(world_.OptionsOf(0).store->Set(key, listening.back().address()).ok());
  }
  thread_ = std::thread([this] {
    FabricOptions options = world_.OptionsOf(0);
    options.socket_directory.clear();
    options.tcp_address = "127.0.0.1";
    options.join_timeout = absl::Milliseconds(500);
    auto fabric = Fabric::Create(options, OneGroup(3, 3, kRingBytes).groups).value();
    result_ = fabric->Connect();
    if (!result_.ok()) return;
    result_ = fabric->Make("all").value()->Barrier({.timeout = absl::Seconds(20)});
  });
  for (const int rank : {1, 2}) WelcomeAt(listening[static_cast<size_t>(rank - 1)], rank);
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop_all};
  ASSERT_EQ(::setsockopt(met_[0].get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)),
            0);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(UnreachedRanks(status), ElementsAre(1));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the machine of rank 1 has confirmed nothing for 500ms"));
}

TEST_F(ConnectTest, ARouteToNowhereIsTriedUntilTheDeadline) {
  reach_timeout_ = absl::Milliseconds(300);
  // Connecting to a broadcast address is forbidden, as by a firewall.
  ASSERT_TRUE(world_.OptionsOf(0).store->Set("address/1", "tcp 255.255.255.255 9").ok());
  Connect(0, {1});
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(UnreachedRanks(status), ElementsAre(1));
}

TEST_F(ConnectTest, ARankThatComesAndDoesNotProveItselfIsNoFaultOfALink) {
  join_timeout_ = absl::Milliseconds(300);
  const ListeningSocket listening = ListenAs(1);
  Connect(0, {1});
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(BlamedRanks(status), ElementsAre(1));
  EXPECT_TRUE(UnreachedRanks(status).empty());
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 waited 300ms"));
}

TEST_F(ConnectTest, AConnectorThatIsDroppedAgainAndAgainStopsWhenItIsAborted) {
  const ListeningSocket listening = ListenAs(1);
  Connect(0, {1});
  AcceptAt(listening).reset();
  cancelled_ = true;
  EXPECT_EQ(End().code(), absl::StatusCode::kAborted);
}

// A connection needs a new socket after this rank used up its descriptors: waiting would not help,
// and the peer has done nothing wrong.
TEST_F(ConnectTest, ARankWithoutDescriptorsFailsAtOnceAndBlamesNobody) {
  const ListeningSocket listening = ListenAs(1);
  Connect(0, {1});
  base::UniqueFd accepted = AcceptAt(listening);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none_left = {3, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_left), 0);
  accepted.reset();
  const absl::Status status = End();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(BlamedRanks(status), ElementsAre());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit of this process is 3;"));
}

TEST_F(ConnectTest, ARankThatNeedsMoreDescriptorsThanItsLimitSaysSoBeforeItStarts) {
  const auto connect = [this] {
    const rlimit low = {65, 65};  // 64 for everything else
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    Connect(0, {1, 2});
    const absl::Status status = End();
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    ::_exit(BlamedRanks(status).empty() ? 0 : 1);
  };
  EXPECT_EXIT(
      connect(), ::testing::ExitedWithCode(0),
      "RESOURCE_EXHAUSTED: too few descriptors: this rank needs [0-9]+ for its 2 connections "
      "to other machines, beside [0-9]+ open ones, and its limit is 65, ");
}

TEST_F(ConnectTest, APeerIsNotPushedOutByThoseThatComeAfterIt) {
  Connect(1, {0, 2});
  auto peer = Greet(0, 1);
  const int socket = met_.back().get();
  ComeAsStrangers(1);  // in the backlog: rank 1 still looks for the address of rank 2
  const ListeningSocket listening = ListenAs(2);
  EXPECT_EQ(Finish(*peer, socket), absl::OkStatus());
  WelcomeAt(listening, 2);
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ConnectTest, StrangersThatSayNothingMakeRoomForAPeer) {
  patience_ = absl::Milliseconds(20);
  Connect(1, {0});
  ComeAsStrangers(1);
  auto peer = Greet(0, 1);
  EXPECT_EQ(Finish(*peer, met_.back().get()), absl::OkStatus());
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ConnectTest, APeerThatLostItsSocketComesAgain) {
  Connect(2, {0, 1});
  for (int i = 0; i < 2; ++i) {
    auto peer = Greet(0, 2);
    EXPECT_EQ(Finish(*peer, met_.back().get()), absl::OkStatus());
    met_.clear();
  }
  auto other = Greet(1, 2);
  EXPECT_EQ(Finish(*other, met_.back().get()), absl::OkStatus());
  EXPECT_EQ(End(), absl::OkStatus());
}

TEST_F(ConnectTest, APeerOfAGroupThatIsNotSharedIsToldSo) {
  Connect(2, {1});
  auto other = Greet(0, 2);
  EXPECT_EQ(Finish(*other, met_.back().get()).code(), absl::StatusCode::kInternal);
  auto peer = Greet(1, 2);
  EXPECT_EQ(Finish(*peer, met_.back().get()), absl::OkStatus());
  EXPECT_EQ(End(), absl::OkStatus());
}

}  // namespace
}  // namespace megascale::comm
