#include "controlplane/agent/core/repeater.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace megascale::agent {
namespace {

using telemetry::v1::RankStatus;

constexpr absl::Duration kSecond = absl::Seconds(1);

v1::ActualState Report(int64_t version) {
  v1::ActualState report;
  report.set_applied_version(version);
  return report;
}

std::optional<RankStatus> Unread(const std::string&, const RankStatus&) { return std::nullopt; }

TEST(RepeaterTest, ALoopThatReportsInTimeIsNotRepeated) {
  Repeater repeater;
  EXPECT_FALSE(repeater.Due(100 * kSecond, Unread).has_value()) << "there is no report yet";
  for (int i = 0; i < 10; ++i) {
    repeater.OnReport(Report(i), kSecond, i * kSecond);
    EXPECT_FALSE(repeater.Due(i * kSecond + 1.4 * kSecond, Unread).has_value());
  }
}

TEST(RepeaterTest, ABusyLoopIsRepeatedEveryInterval) {
  Repeater repeater;
  repeater.OnReport(Report(7), kSecond, 100 * kSecond);
  int count = 0;
  for (absl::Duration now = 100 * kSecond; now < 110 * kSecond; now += 0.25 * kSecond) {
    const auto report = repeater.Due(now, Unread);
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
  const auto repeated = repeater.Due(102 * kSecond, Unread);
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->jobs(0).ranks(0).status().recent(), "");
}

TEST(RepeaterTest, ALoopThatHangsIsLostInTheEnd) {
  Repeater repeater;
  repeater.OnReport(Report(7), kSecond, absl::ZeroDuration());
  EXPECT_TRUE(repeater.Due(Repeater::kBusyMax, Unread).has_value());
  EXPECT_FALSE(repeater.Due(Repeater::kBusyMax + 2 * kSecond, Unread).has_value());
  repeater.OnReport(Report(8), kSecond, Repeater::kBusyMax + 3 * kSecond);
  EXPECT_EQ(repeater.Due(Repeater::kBusyMax + 5 * kSecond, Unread)->applied_version(), 8);
}

// A rank that has stood still since is told, and one that has made progress, too.
TEST(RepeaterTest, ARepeatedReportHasItsAgeAndTheProgressOfNow) {
  Repeater repeater;
  v1::ActualState report = Report(7);
  v1::ActualJob* job = report.add_jobs();
  job->set_job_id("j");
  for (int rank = 0; rank < 2; ++rank) {
    v1::ActualRank* actual = job->add_ranks();
    actual->set_state(v1::ActualRank::STATE_RUNNING);
    actual->mutable_status()->set_rank(rank);
    actual->mutable_status()->set_progress_age_seconds(1);
    actual->mutable_status()->set_alive_age_seconds(0.5);
  }
  job->mutable_ranks(1)->set_state(v1::ActualRank::STATE_FAILED);
  repeater.OnReport(report, kSecond, 100 * kSecond);
  const auto repeated =
      repeater.Due(120 * kSecond, [](const std::string& job_id, const RankStatus& reported) {
        EXPECT_EQ(job_id, "j");
        EXPECT_EQ(reported.rank(), 0) << "only running ranks are read";
        RankStatus now;
        now.set_progress_age_seconds(21);
        now.set_alive_age_seconds(20.5);
        now.set_step(4);
        return std::optional(now);
      });
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->age_seconds(), 20);
  const RankStatus& status = repeated->jobs(0).ranks(0).status();
  EXPECT_EQ(status.progress_age_seconds(), 21);
  EXPECT_EQ(status.step(), 4);
  EXPECT_EQ(status.alive_age_seconds(), 0.5) << "its end, if any, is the loop's to tell";
  EXPECT_EQ(repeated->jobs(0).ranks(1).status().progress_age_seconds(), 1);
}

}  // namespace
}  // namespace megascale::agent
