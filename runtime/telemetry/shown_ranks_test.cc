#include "runtime/telemetry/shown_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megascale::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

double NeverQuiet(int) { return 0; }

TEST(ShownRanksTest, ThereIsRoomForAllOrForTheLowest) {
  EXPECT_THAT(ChooseShownRanks(3, 3, NeverQuiet), ElementsAre(0, 1, 2));
  EXPECT_THAT(ChooseShownRanks(3, 2, NeverQuiet), ElementsAre(0, 1));
  EXPECT_THAT(ChooseShownRanks(0, 2, NeverQuiet), IsEmpty());
}

TEST(ShownRanksTest, RanksWithoutProgressComeBeforeLowerOnes) {
  const auto quiet = [](int rank) { return rank == 7 || rank == 9 ? kQuietSeconds + 0.1 : 3; };
  EXPECT_THAT(ChooseShownRanks(12, 4, quiet), ElementsAre(0, 1, 7, 9));
  EXPECT_THAT(ChooseShownRanks(12, 1, quiet), ElementsAre(7));
}

TEST(ShownRanksTest, DevicesThatLookAlikeAreOfOneKind) {
  std::vector<DeviceKind> kinds;
  v1::DeviceUse device;
  device.set_name("cpu");
  for (const int64_t spare_kib : {0, 4, 16}) {
    device.set_memory_bytes((int64_t{503} << 30) + (spare_kib << 10));
    CountDevice(device, &kinds);
  }
  device.set_memory_bytes(int64_t{80} << 30);
  CountDevice(device, &kinds);
  device.set_name("NVIDIA H100");
  CountDevice(device, &kinds);
  ASSERT_EQ(kinds.size(), 3u);
  EXPECT_EQ(kinds[0].num_ranks, 3);
  EXPECT_EQ(kinds[0].memory_bytes, int64_t{503} << 30);
  EXPECT_EQ(kinds[1].num_ranks, 1);
  EXPECT_EQ(kinds[2].name, "NVIDIA H100");
}

}  // namespace
}  // namespace megascale::telemetry
