#include "runtime/engine/peers/rank_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/testing/test_world.h"

namespace megascale::engine {
namespace {

using ::testing::HasSubstr;

// Ranks 0 and 1 share a group, as do 2 and 3; each machine has one of both.
comm::WorldSpec TwoGroups() {
  comm::WorldSpec spec;
  spec.placements = {"a", "b", "a", "b"};
  spec.groups = {{"one", {0, 1}, 4096}, {"two", {2, 3}, 4096}};
  return spec;
}

constexpr comm::CallInfo kCall = {.instruction_id = 7};

TEST(RankPair, RanksWithoutACommonGroupMeetThroughTheStore) {
  for (const bool uses_tcp : {false, true}) {
    comm::WorldSpec spec = TwoGroups();
    spec.uses_tcp = uses_tcp;
    comm::ThreadWorld world(spec);
    world.RunConnected([&](int rank, comm::Fabric& /*fabric*/) {
      // 0 with 3, 1 with 2; then the same again, the other way.
      for (const char* name : {"first", "second"}) {
        const int peer = 3 - rank;
        const int low = std::min(rank, peer);
        const auto pair =
            RankPair::Connect(world.OptionsOf(rank), peer, absl::StrCat(name, low)).value();
        const bool sends = (rank == low) == (std::string(name) == "first");
        std::vector<std::byte> bytes(300'000, std::byte{sends ? uint8_t{9} : uint8_t{0}});
        if (sends) {
          EXPECT_EQ(pair->communicator().Send(pair->peer(), bytes, kCall), absl::OkStatus());
        } else {
          EXPECT_EQ(pair->communicator().Recv(pair->peer(), absl::MakeSpan(bytes), kCall),
                    absl::OkStatus());
        }
        EXPECT_EQ(bytes.back(), std::byte{9});
      }
    });
  }
}

TEST(RankPair, APeerThatDoesNotComeIsNamed) {
  comm::ThreadWorld world(TwoGroups());
  world.RunConnected([&](int rank, comm::Fabric& /*fabric*/) {
    if (rank != 0) return;
    comm::FabricOptions options = world.OptionsOf(rank);
    options.connect_timeout = absl::Milliseconds(200);
    const auto pair = RankPair::Connect(options, 3, "alone");
    EXPECT_EQ(pair.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(comm::BlamedRanks(pair.status()), std::vector<int>{3});
    EXPECT_THAT(std::string(pair.status().message()), HasSubstr("3"));
  });
}

}  // namespace
}  // namespace megascale::engine
