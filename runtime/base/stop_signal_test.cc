#include "runtime/base/stop_signal.h"

#include <gtest/gtest.h>

#include <thread>

namespace megascale::base {
namespace {

TEST(StopSignalTest, AWaitEndsWithTheSignalOrItsTime) {
  StopSignal signal;
  EXPECT_FALSE(signal.WaitFor(absl::ZeroDuration()));
  EXPECT_FALSE(signal.WaitFor(absl::Milliseconds(1)));
  bool given = false;
  std::thread waits([&] { given = signal.WaitFor(absl::Seconds(60)); });
  signal.Notify();
  waits.join();
  EXPECT_TRUE(given);
  EXPECT_TRUE(signal.WaitFor(absl::Hours(1))) << "once given it stays so";
}

}  // namespace
}  // namespace megascale::base
