#include "runtime/data/sample_order.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <vector>

namespace megascale::data {
namespace {

std::vector<int64_t> Starts(const SampleOrder& order, int64_t first, int64_t count) {
  std::vector<int64_t> starts;
  for (int64_t sample = first; sample < first + count; ++sample) {
    starts.push_back(order.WindowStart(sample));
  }
  return starts;
}

// Every text size, odd or not, around multiples of the window.
TEST(SampleOrderTest, AnEpochTakesEveryWindowOfOneGridExactlyOnce) {
  for (const int seq_length : {1, 2, 7, 64}) {
    for (int64_t text_bytes = seq_length + 1; text_bytes < 20 * seq_length + 3; ++text_bytes) {
      const SampleOrder order(17, text_bytes, seq_length);
      ASSERT_GE(order.num_windows(), 1);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        const auto starts = Starts(order, epoch * order.num_windows(), order.num_windows());
        const std::set<int64_t> distinct(starts.begin(), starts.end());
        ASSERT_EQ(distinct.size(), starts.size());
        ASSERT_GE(*distinct.begin(), 0);
        ASSERT_LT(*distinct.begin(), seq_length);
        ASSERT_LE(*distinct.rbegin() + seq_length + 1, text_bytes);
        ASSERT_EQ(*distinct.rbegin() - *distinct.begin(), (order.num_windows() - 1) * seq_length);
      }
    }
  }
}

TEST(SampleOrderTest, AtMostTwoWindowsOfTextAreLeftOutOfAnEpoch) {
  const SampleOrder order(1, 2'345'678, 256);
  EXPECT_GE(order.num_windows() * 256, 2'345'678 - 2 * 256);
}

TEST(SampleOrderTest, EpochsDifferInOrderAndInTheGridsOffset) {
  const SampleOrder order(3, 100'000, 128);
  const int64_t windows = order.num_windows();
  std::set<int64_t> offsets;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    offsets.insert(order.WindowStart(epoch * windows) % 128);
  }
  EXPECT_GT(offsets.size(), 10u);
  EXPECT_NE(Starts(order, 0, 10), Starts(order, windows, 10));
}

TEST(SampleOrderTest, SeedsDiffer) {
  EXPECT_NE(Starts(SampleOrder(1, 100'000, 128), 0, 10),
            Starts(SampleOrder(2, 100'000, 128), 0, 10));
}

TEST(SampleOrderTest, NeighboursInTheOrderAreNoNeighboursInTheText) {
  const SampleOrder order(5, 1'000'000, 100);
  int num_close = 0;
  for (int64_t sample = 0; sample + 1 < 1000; ++sample) {
    const int64_t distance = order.WindowStart(sample + 1) - order.WindowStart(sample);
    if (std::abs(distance) <= 1000) ++num_close;
  }
  EXPECT_LT(num_close, 20);  // 2 in 1000 by chance
}

// The order is part of the numerics: it may only change together with kNumericsVersion of
// runtime/checkpoint.
TEST(SampleOrderTest, TheOrderIsFrozen) {
  const SampleOrder order(42, 1'000'000, 256);
  EXPECT_EQ(order.num_windows(), 3905);
  EXPECT_EQ(Starts(order, 0, 4), (std::vector<int64_t>{935750, 905798, 490566, 265030}));
  EXPECT_EQ(Starts(order, 1'000'000'000'000, 2), (std::vector<int64_t>{229236, 641908}));
}

}  // namespace
}  // namespace megascale::data
