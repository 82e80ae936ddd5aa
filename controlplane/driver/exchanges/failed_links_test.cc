#include "controlplane/driver/exchanges/failed_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "controlplane/driver/exchanges/testing/test_machine.h"

namespace megascale::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int64_t kNow = 1'000'000'000'000;

TEST(FailedLinksTest, ALinkIsKnownByItsMachinesWhateverTheirAgentsAreCalled) {
  v1::DriverState state;
  for (const char* node_id : {"a", "b", "c"}) AddMachine(node_id, &state);
  NoteFailedLink("a", "b", kNow, &state);
  EXPECT_THAT(FailedPairs(state), ElementsAre(Pair("a", "b")));
  state.mutable_nodes(1)->mutable_hello()->set_node_id("b-again");
  EXPECT_THAT(FailedPairs(state), ElementsAre(Pair("a", "b-again")));
  NoteFailedLink("b-again", "a", kNow + 1, &state);
  EXPECT_THAT(state.failed_links(), SizeIs(1)) << "the same link, from its other end";
  EXPECT_FALSE(HasFailedLink(state, "c"));
  ForgetLinksAmong({"a", "c"}, &state);
  EXPECT_TRUE(HasFailedLink(state, "a"));
  ForgetLinksAmong({"a", "b-again"}, &state);
  EXPECT_THAT(FailedPairs(state), IsEmpty());
}

TEST(FailedLinksTest, AgentsThatShareAMachineAreToldApart) {
  v1::DriverState state;
  for (const char* node_id : {"a", "b", "c"}) {
    AddMachine(node_id, &state)->mutable_hello()->set_machine_id("one");
  }
  NoteFailedLink("a", "b", kNow, &state);
  EXPECT_THAT(FailedPairs(state), ElementsAre(Pair("a", "b")));
  EXPECT_FALSE(HasFailedLink(state, "c"));
}

TEST(FailedLinksTest, OnlyLinksBetweenMachinesThatLiveAreKept) {
  v1::DriverState state;
  for (const char* node_id : {"a", "b"}) AddMachine(node_id, &state);
  NoteFailedLink("a", "a", kNow, &state);
  NoteFailedLink("a", "nobody", kNow, &state);
  state.mutable_nodes(1)->set_alive(false);
  NoteFailedLink("a", "b", kNow, &state);
  EXPECT_THAT(state.failed_links(), IsEmpty());
}

TEST(FailedLinksTest, TheNewestLinksStay) {
  v1::DriverState state;
  const auto id = [](int i) { return absl::StrFormat("%03d", i); };
  for (int i = 0; i <= kFailedLinksMax + 1; ++i) AddMachine(id(i), &state);
  for (int i = 1; i <= kFailedLinksMax + 1; ++i) {
    NoteFailedLink(id(0), id(i), kNow + i, &state);
  }
  EXPECT_THAT(state.failed_links(), SizeIs(kFailedLinksMax));
  EXPECT_FALSE(HasFailedLink(state, id(1)));
  EXPECT_TRUE(HasFailedLink(state, id(2)));
  ForgetOldLinks(kNow + 2 + absl::ToInt64Nanoseconds(kFailedLinkMemory), &state);
  EXPECT_TRUE(HasFailedLink(state, id(2)));
  ForgetOldLinks(kNow + 3 + absl::ToInt64Nanoseconds(kFailedLinkMemory), &state);
  EXPECT_FALSE(HasFailedLink(state, id(2)));
}

}  // namespace
}  // namespace megascale::driver
