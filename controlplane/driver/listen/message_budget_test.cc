#include "controlplane/driver/listen/message_budget.h"

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

TEST(MessageBudgetTest, LargeMessagesWaitForRoomAndSmallOnesDoNot) {
  MessageBudget budget(3 * kMiB);
  const MessageBudget::Share first(&budget, 2 * kMiB);
  EXPECT_TRUE(first.granted());
  {
    const MessageBudget::Share second(&budget, kMiB);
    EXPECT_TRUE(second.granted());
    EXPECT_FALSE(MessageBudget::Share(&budget, 2 * MessageBudget::kSmallBytes).granted());
    EXPECT_TRUE(MessageBudget::Share(&budget, MessageBudget::kSmallBytes).granted());
  }
  EXPECT_FALSE(MessageBudget::Share(&budget, 2 * kMiB).granted());
  EXPECT_TRUE(MessageBudget::Share(&budget, kMiB).granted()) << "its room was given back";
}

TEST(MessageBudgetTest, AMessageLargerThanTheBudgetPassesAlone) {
  MessageBudget budget(kMiB);
  auto large = std::make_unique<MessageBudget::Share>(&budget, 9 * kMiB);
  EXPECT_TRUE(large->granted());
  EXPECT_FALSE(MessageBudget::Share(&budget, kMiB).granted());
  large.reset();
  EXPECT_TRUE(MessageBudget::Share(&budget, kMiB).granted());
}

// Each thread keeps its share until all have asked for one.
TEST(MessageBudgetTest, ThreadsTogetherStayWithinIt) {
  constexpr int kThreads = 8;
  constexpr int kTurns = 200;
  MessageBudget budget(3 * kMiB);
  std::barrier all(kThreads);
  std::array<std::atomic<int>, kTurns> granted = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::atomic<int>& in_turn : granted) {
        all.arrive_and_wait();
        const MessageBudget::Share share(&budget, kMiB);
        in_turn += share.granted() ? 1 : 0;
        all.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& in_turn : granted) EXPECT_EQ(in_turn, 3);
  EXPECT_TRUE(MessageBudget::Share(&budget, 3 * kMiB).granted());
}

}  // namespace
}  // namespace megascale::driver
