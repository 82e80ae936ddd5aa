#include "controlplane/driver/listen/write_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
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

TEST(WriteBudgetTest, ThreadsTogetherStayWithinIt) {
  WriteBudget budget(3 * kMiB);
  std::atomic<int> writing = 0;
  std::atomic<int> most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 500; ++turn) {
        const WriteBudget::Share share(&budget, kMiB);
        if (!share.granted()) continue;
        const int now = ++writing;
        int before = most;
        while (now > before && !most.compare_exchange_weak(before, now)) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        --writing;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 3);
  EXPECT_TRUE(WriteBudget::Share(&budget, 3 * kMiB).granted());
}

}  // namespace
}  // namespace megascale::driver
