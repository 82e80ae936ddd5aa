// The invariants hold under the storms of two thousand seeds, and a seed is a bug report: it gives
// the same run again.
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/log.h"
#include "tests/sim/simulation.h"

namespace megascale::sim {
namespace {

constexpr uint64_t kSeedsPerBlock = 50;
constexpr int kNumBlocks = 40;

class StormTest : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    static const bool once = [] {
      base::InitLog("sim", base::LogLevel::kError);
      return true;
    }();
    EXPECT_TRUE(once);
  }
};

TEST_P(StormTest, EveryInvariantHolds) {
  Outcome sum;
  for (uint64_t i = 1; i <= kSeedsPerBlock; ++i) {
    const uint64_t seed = static_cast<uint64_t>(GetParam()) * kSeedsPerBlock + i;
    RecordProperty("seed", absl::StrCat(seed));
    const Outcome outcome = Simulate({.seed = seed});
    for (const Violation& violation : outcome.violations) {
      ADD_FAILURE() << "seed " << seed << " breaks " << violation.invariant << " at "
                    << absl::FormatDuration(violation.when) << ": " << violation.what
                    << "\nreplay: megascale-sim --seed " << seed << " --trace";
    }
    sum.num_jobs += outcome.num_jobs;
    sum.num_succeeded += outcome.num_succeeded;
    sum.num_attempts += outcome.num_attempts;
    sum.num_from_memory += outcome.num_from_memory;
    sum.num_from_storage += outcome.num_from_storage;
  }
  // The storm was one, and jobs came through it in every way that there is.
  EXPECT_GT(2 * sum.num_attempts, sum.num_jobs);
  EXPECT_GT(sum.num_succeeded, sum.num_jobs / 3);
  EXPECT_GT(sum.num_from_memory, 3);
  EXPECT_GT(sum.num_from_storage, 3);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StormTest, ::testing::Range(0, kNumBlocks));

TEST(SimulationTest, TheSameSeedGivesTheSameRun) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome first = Simulate({.seed = seed});
    const Outcome second = Simulate({.seed = seed});
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.num_lines, second.num_lines) << "seed " << seed;
    hashes.insert(first.hash);
  }
  EXPECT_EQ(hashes.size(), 10u) << "different seeds give different runs";
}

TEST(SimulationTest, WithoutFaultsEveryJobNeedsOneAttempt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome outcome = Simulate({.seed = seed, .calm = true});
    EXPECT_TRUE(outcome.violations.empty()) << "seed " << seed;
    EXPECT_LE(outcome.num_attempts, outcome.num_jobs) << "seed " << seed;
  }
}

}  // namespace
}  // namespace megascale::sim
