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

}  // namespace
}  // namespace megascale::telemetry
