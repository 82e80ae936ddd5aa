#include "runtime/diagnose/sampling/slow_looks.h"

#include <gtest/gtest.h>

namespace megascale::diagnose {
namespace {

class SlowLooksTest : public testing::Test {
 protected:
  // A round that finds the node slow in job "j", and whether that names it; "": it finds nothing.
  bool Look(const std::string& node_id, int64_t newest_step, int64_t attempt = 1) {
    const bool is_confirmed = looks_.IsConfirmed("j", {node_id, attempt, newest_step});
    looks_.EndRound();
    return is_confirmed;
  }

  SlowLooks looks_;
};

TEST_F(SlowLooksTest, ASlowMachineIsNamedAtTheSecondLookAndAsLongAsItLasts) {
  EXPECT_FALSE(Look("n1", 100));
  EXPECT_TRUE(Look("n1", 110));
  EXPECT_TRUE(Look("n1", 111)) << "it is confirmed";
}

TEST_F(SlowLooksTest, AJobThatRecoversInBetweenNamesNobody) {
  EXPECT_FALSE(Look("n1", 100));
  looks_.EndRound();  // nothing is wrong, so the job is not examined
  EXPECT_FALSE(Look("n1", 120));
  EXPECT_FALSE(Look("", 130)) << "it is examined, and no machine is found";
  EXPECT_FALSE(Look("n1", 140));
  EXPECT_TRUE(Look("n1", 150));
}

// Its steps take so long that it seems to stand still before each of them ends.
TEST_F(SlowLooksTest, ARoundThatTakesTheJobForStuckNeitherConfirmsNorClears) {
  EXPECT_FALSE(Look("n1", 100));
  for (int round = 0; round < 3; ++round) {
    looks_.PassOver("j");
    looks_.EndRound();
  }
  EXPECT_TRUE(Look("n1", 105));
  looks_.EndRound();
  looks_.PassOver("j");
  EXPECT_FALSE(Look("n1", 110)) << "nothing was wrong in between";
}

// The next look comes after ten seconds, and may judge the slow steps of the first one again.
TEST_F(SlowLooksTest, TheSameStepsCountOnce) {
  EXPECT_FALSE(Look("n1", 100));
  for (const int64_t newest : {100, 101, 104}) EXPECT_FALSE(Look("n1", newest)) << newest;
  EXPECT_TRUE(Look("n1", 105));
}

TEST_F(SlowLooksTest, AnotherMachineOrAttemptBeginsAnew) {
  EXPECT_FALSE(Look("n1", 100));
  EXPECT_FALSE(Look("n2", 110));
  EXPECT_FALSE(Look("n1", 120));
  EXPECT_FALSE(Look("n1", 130, 2));
  EXPECT_TRUE(Look("n1", 140, 2));
}

TEST_F(SlowLooksTest, JobsOnTheSameMachineAreNoWitnessesForEachOther) {
  EXPECT_FALSE(looks_.IsConfirmed("j", {"n1", 1, 100}));
  EXPECT_FALSE(looks_.IsConfirmed("k", {"n1", 1, 200}));
  looks_.EndRound();
  EXPECT_FALSE(looks_.IsConfirmed("l", {"n1", 1, 300}));
  EXPECT_TRUE(looks_.IsConfirmed("k", {"n1", 1, 210}));
  looks_.EndRound();
  EXPECT_FALSE(looks_.IsConfirmed("j", {"n1", 1, 120})) << "a round has not found it";
}

}  // namespace
}  // namespace megascale::diagnose
