#include "controlplane/protocol/recent_texts.h"

#include <gtest/gtest.h>

namespace megascale::protocol {
namespace {

using megascale::agent::v1::ActualRank;
using megascale::agent::v1::ActualState;

// A report about one rank, which has stood still for `age` seconds.
ActualState Report(double age, const std::string& recent) {
  ActualState report;
  megascale::agent::v1::ActualJob* job = report.add_jobs();
  job->set_job_id("j");
  job->set_attempt(2);
  ActualRank* rank = job->add_ranks();
  rank->set_state(ActualRank::STATE_RUNNING);
  rank->mutable_status()->set_rank(3);
  rank->mutable_status()->set_pid(77);
  rank->mutable_status()->set_progress_age_seconds(age);
  rank->mutable_status()->set_recent(recent);
  return report;
}

ActualRank* RankOf(ActualState* report) { return report->mutable_jobs(0)->mutable_ranks(0); }

// Returns the rank's text after `before` was replaced by `report`.
std::string TextAfter(const ActualState& before, ActualState report) {
  const std::string own = RankOf(&report)->status().recent();
  const bool lacks = LacksRecentTexts(before, report);
  KeepRecentTexts(before, &report);
  EXPECT_EQ(lacks, RankOf(&report)->status().recent() != own);
  return RankOf(&report)->status().recent();
}

TEST(RecentTextsTest, ATextIsKeptWhileItsRankStandsStill) {
  const ActualState before = Report(9, "in F.c0.m1");
  EXPECT_EQ(TextAfter(before, Report(9, "")), "in F.c0.m1");
  EXPECT_EQ(TextAfter(before, Report(10, "")), "in F.c0.m1");
  EXPECT_EQ(TextAfter(before, Report(10, "in B.c0.m1")), "in B.c0.m1") << "the newer one counts";
  EXPECT_EQ(TextAfter(Report(9, ""), Report(10, "")), "");
}

TEST(RecentTextsTest, ATextEndsWithWhatItTells) {
  const ActualState before = Report(9, "in F.c0.m1");
  EXPECT_EQ(TextAfter(before, Report(0.5, "")), "") << "it has gone on";
  ActualState restarted = Report(10, "");
  RankOf(&restarted)->mutable_status()->set_pid(78);
  EXPECT_EQ(TextAfter(before, restarted), "");
  ActualState ended = Report(10, "");
  RankOf(&ended)->set_state(ActualRank::STATE_FAILED);
  EXPECT_EQ(TextAfter(before, ended), "");
  ActualState later = Report(10, "");
  later.mutable_jobs(0)->set_attempt(3);
  EXPECT_EQ(TextAfter(before, later), "");
  ActualState other = Report(10, "");
  other.mutable_jobs(0)->set_job_id("k");
  EXPECT_EQ(TextAfter(before, other), "");
}

TEST(RecentTextsTest, OnlyRanksThatHaveATextAreFound) {
  ActualState report = Report(9, "in F.c0.m1");
  report.mutable_jobs(0)->add_ranks();
  EXPECT_TRUE(HasRecentTexts(report));
  ASSERT_EQ(RecentTextsOf(&report).size(), 1u);
  EXPECT_EQ(*RecentTextsOf(&report)[0], "in F.c0.m1");
  ClearRecentTexts(&report);
  EXPECT_FALSE(HasRecentTexts(report));
  EXPECT_EQ(RankOf(&report)->status().rank(), 3) << "nothing else is cleared";
}

}  // namespace
}  // namespace megascale::protocol
