#include "controlplane/agent/service/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace megascale::agent {
namespace {

constexpr absl::Duration kSecond = absl::Seconds(1);

v1::ActualState Report(int64_t version) {
  v1::ActualState report;
  report.set_applied_version(version);
  return report;
}

TEST(RepeaterTest, ALoopThatReportsInTimeIsNotRepeated) {
  Repeater repeater;
  EXPECT_FALSE(repeater.Due(100 * kSecond).has_value()) << "there is no report yet";
  for (int i = 0; i < 10; ++i) {
    repeater.OnReport(Report(i), kSecond, i * kSecond);
    EXPECT_FALSE(repeater.Due(i * kSecond + 1.4 * kSecond).has_value());
  }
}

TEST(RepeaterTest, ABusyLoopIsRepeatedEveryInterval) {
  Repeater repeater;
  repeater.OnReport(Report(7), kSecond, 100 * kSecond);
  int count = 0;
  for (absl::Duration now = 100 * kSecond; now < 110 * kSecond; now += 0.25 * kSecond) {
    const auto report = repeater.Due(now);
    if (!report.has_value()) continue;
    EXPECT_EQ(report->applied_version(), 7);
    ++count;
  }
  EXPECT_GE(count, 5);
  EXPECT_LE(count, 7);
}

// They count as bytes of diagnosis, and the driver keeps the text.
TEST(RepeaterTest, TextsOfStalledRanksAreSentOnce) {
  Repeater repeater;
  v1::ActualState report = Report(7);
  report.add_jobs()->add_ranks()->mutable_status()->set_recent("in F.c0.m1");
  repeater.OnReport(report, kSecond, 100 * kSecond);
  const auto repeated = repeater.Due(102 * kSecond);
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->jobs(0).ranks(0).status().recent(), "");
}

TEST(RepeaterTest, ALoopThatHangsIsLostInTheEnd) {
  Repeater repeater;
  repeater.OnReport(Report(7), kSecond, absl::ZeroDuration());
  EXPECT_TRUE(repeater.Due(Repeater::kBusyMax).has_value());
  EXPECT_FALSE(repeater.Due(Repeater::kBusyMax + 2 * kSecond).has_value());
  repeater.OnReport(Report(8), kSecond, Repeater::kBusyMax + 3 * kSecond);
  EXPECT_EQ(repeater.Due(Repeater::kBusyMax + 5 * kSecond)->applied_version(), 8);
}

// The loop reports once and is busy from then on. Each wait ends by a deadline.
TEST(HeartbeatTest, ReportsGoOnWhileTheLoopIsBusy) {
  std::mutex mutex;
  std::condition_variable sent;
  int count = 0;
  Heartbeat heartbeat([&](v1::ActualState report) {
    EXPECT_EQ(report.applied_version(), 7);
    const std::lock_guard<std::mutex> lock(mutex);
    ++count;
    sent.notify_all();
  });
  heartbeat.Report(Report(7), absl::Milliseconds(20));
  std::unique_lock<std::mutex> lock(mutex);
  EXPECT_TRUE(sent.wait_for(lock, std::chrono::seconds(30), [&] { return count >= 4; })) << count;
}

}  // namespace
}  // namespace megascale::agent
