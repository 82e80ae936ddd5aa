#include "runtime/diagnose/calls/late_begin.h"

#include <gtest/gtest.h>

#include <limits>

namespace megascale::diagnose {
namespace {

constexpr int64_t kMillis = 1'000'000;

// 20 all-reduces of ranks 0 and 1 on one machine, and of 2 and 3 on another, whose clock is far
// ahead. `delay(rank, i)` in milliseconds.
template <typename Delay>
std::vector<BegunCall> Calls(const Delay& delay) {
  std::vector<BegunCall> calls;
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < 4; ++rank) {
      const int machine = rank / 2;
      calls.push_back({.rank = rank,
                       .machine = machine,
                       .group = "tp",
                       .sequence = static_cast<uint64_t>(i),
                       .instruction = 7,
                       .begin_nanos = machine * 1'000'000 * kMillis + i * 100 * kMillis +
                                      delay(rank, i) * kMillis});
    }
  }
  return calls;
}

TEST(LateBeginTest, NamesTheRankThatIsLateInSomeOfItsCalls) {
  for (int late = 0; late < 4; ++late) {
    const LateRank found = FindLateRank(
        Calls([&](int rank, int i) { return rank == late && i % 5 == 0 ? 300 : rank % 2; }));
    EXPECT_EQ(found.rank, late);
    EXPECT_EQ(found.num_calls, 20);
    EXPECT_EQ(found.num_late, 4);
    EXPECT_NEAR(found.seconds, 0.3, 0.01);
  }
}

TEST(LateBeginTest, NamesNobodyIfRanksAreLateByTurns) {
  EXPECT_EQ(FindLateRank(Calls([](int rank, int i) { return i % 4 == rank ? 300 : 0; })).rank, -1);
}

TEST(LateBeginTest, OneLateCallIsNoHabit) {
  EXPECT_EQ(FindLateRank(Calls([](int rank, int i) { return rank == 2 && i == 7 ? 900 : 0; })).rank,
            -1);
}

TEST(LateBeginTest, ClocksOfDifferentMachinesAreNotCompared) {
  EXPECT_EQ(FindLateRank(Calls([](int, int) { return 0; })).rank, -1);
  std::vector<BegunCall> alone = Calls([](int rank, int) { return rank == 3 ? 300 : 0; });
  for (BegunCall& call : alone) call.machine = call.rank;
  EXPECT_EQ(FindLateRank(alone).rank, -1);
}

TEST(LateBeginTest, HostileTimesAreNoOverflow) {
  std::vector<BegunCall> calls = Calls([](int, int) { return 0; });
  calls[0].begin_nanos = std::numeric_limits<int64_t>::min();
  calls[1].begin_nanos = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(FindLateRank(calls).rank, -1);
}

}  // namespace
}  // namespace megascale::diagnose
