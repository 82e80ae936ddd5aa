#include "controlplane/driver/listen/write_budget.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

namespace megascale::driver {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(WriteBudgetTest, LargeMessagesWaitForRoomAndSmallOnesDoNot) {
  WriteBudget budget(3 * kMiB);
  const WriteBudget::Share first(&budget, 2 * kMiB);
  EXPECT_TRUE(first.granted());
  {
    const WriteBudget::Share second(&budget, kMiB);
    EXPECT_TRUE(second.granted());
    EXPECT_FALSE(WriteBudget::Share(&budget, 2 * WriteBudget::kSmallBytes).granted());
    EXPECT_TRUE(WriteBudget::Share(&budget, WriteBudget::kSmallBytes).granted());
  }
  EXPECT_FALSE(WriteBudget::Share(&budget, 2 * kMiB).granted());
  EXPECT_TRUE(WriteBudget::Share(&budget, kMiB).granted()) << "its room was given back";
}

TEST(WriteBudgetTest, AMessageLargerThanTheBudgetPassesAlone) {
  WriteBudget budget(kMiB);
  auto large = std::make_unique<WriteBudget::Share>(&budget, 9 * kMiB);
  EXPECT_TRUE(large->granted());
  EXPECT_FALSE(WriteBudget::Share(&budget, kMiB).granted());
  large.reset();
  EXPECT_TRUE(WriteBudget::Share(&budget, kMiB).granted());
}

// Each thread keeps its share until all have asked for one.
TEST(WriteBudgetTest, ThreadsTogetherStayWithinIt) {
  constexpr int kThreads = 8;
  constexpr int kTurns = 200;
  WriteBudget budget(3 * kMiB);
  std::barrier all(kThreads);
  std::array<std::atomic<int>, kTurns> granted = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::atomic<int>& in_turn : granted) {
        all.arrive_and_wait();
        const WriteBudget::Share share(&budget, kMiB);
        in_turn += share.granted() ? 1 : 0;
        all.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& in_turn : granted) EXPECT_EQ(in_turn, 3);
  EXPECT_TRUE(WriteBudget::Share(&budget, 3 * kMiB).granted());
}

}  // namespace
}  // namespace megascale::driver
