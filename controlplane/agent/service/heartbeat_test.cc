#include "controlplane/agent/service/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

namespace megascale::agent {
namespace {

v1::ActualState Report(int64_t version) {
  v1::ActualState report;
  report.set_applied_version(version);
  return report;
}

// The loop reports once and is busy from then on. Each wait ends by a deadline.
TEST(HeartbeatTest, ReportsGoOnWhileTheLoopIsBusy) {
  std::mutex mutex;
  std::condition_variable sent;
  int count = 0;
  Heartbeat heartbeat([&](v1::ActualState report) {
    EXPECT_EQ(report.applied_version(), 7);
    EXPECT_EQ(report.jobs(0).ranks(0).status().step(), report.age_seconds() > 0 ? 9 : 0);
    const std::lock_guard<std::mutex> lock(mutex);
    ++count;
    sent.notify_all();
  });
  v1::ActualState report = Report(7);
  report.add_jobs()->add_ranks()->set_state(v1::ActualRank::STATE_RUNNING);
  const auto read = [](const std::string&, const telemetry::v1::RankStatus&, absl::Duration) {
    telemetry::v1::RankStatus status;
    status.set_step(9);
    return std::optional(status);
  };
  heartbeat.Report(report, absl::Milliseconds(20), read);
  std::unique_lock<std::mutex> lock(mutex);
  EXPECT_TRUE(sent.wait_for(lock, std::chrono::seconds(30), [&] { return count >= 4; })) << count;
}

}  // namespace
}  // namespace megascale::agent
