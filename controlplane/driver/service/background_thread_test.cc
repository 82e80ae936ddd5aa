#include "controlplane/driver/service/background_thread.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/stop_signal.h"

namespace megascale::driver {
namespace {

constexpr absl::Duration kWait = absl::Seconds(60);

TEST(BackgroundThreadTest, DoesAllInOrderBeforeItEnds) {
  std::vector<int> done;
  {
    BackgroundThread thread;
    for (int i = 0; i < 100; ++i) thread.Do([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

TEST(BackgroundThreadTest, WhenTooMuchWaitsTheCallerDoesIt) {
  base::StopSignal started;
  base::StopSignal goes_on;
  base::StopSignal all;
  std::vector<std::thread::id> by(3);
  BackgroundThread thread(/*waiting_max=*/1);
  thread.Do([&] {
    by[0] = std::this_thread::get_id();
    started.Notify();
    EXPECT_TRUE(goes_on.WaitFor(kWait));
  });
  ASSERT_TRUE(started.WaitFor(kWait));
  thread.Do([&] {
    by[1] = std::this_thread::get_id();
    all.Notify();
  });
  thread.Do([&] { by[2] = std::this_thread::get_id(); });
  EXPECT_EQ(by[2], std::this_thread::get_id());
  goes_on.Notify();
  ASSERT_TRUE(all.WaitFor(kWait));
  EXPECT_EQ(by[1], by[0]);
  EXPECT_NE(by[1], by[2]);
}

}  // namespace
}  // namespace megascale::driver
