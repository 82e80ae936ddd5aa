#include "controlplane/driver/shell/job_evidence.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;

// Job "j" failed on n0, whose test is due since then.
class JobEvidenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Apply(Submitted("j", SpecOf(1, 1, 30)), &state_);
    Apply(Joined("n0", "a", 1), &state_);
    JobRecord* job = state_.mutable_jobs(0);
    job->set_stage(pb::STAGE_ENDED);
    job->set_stage_event(state_.num_events());
    job->set_ended_unix_nanos(int64_t{1000} * 1'000'000'000);
    job->mutable_culprit()->set_node_id("n0");
    job->mutable_culprit()->set_rank(900);
    agent::MachineTest* test = DueTest()->mutable_test();
    test->set_id(state_.num_events());
    test->set_state(agent::MachineTest::STATE_RUNNING);
  }
  pb::NodeTest* DueTest() { return FindNode(&state_, "n0")->mutable_test(); }
  const JobRecord& job() const { return state_.jobs(0); }
  void EndTest() {
    DueTest()->mutable_test()->set_state(agent::MachineTest::STATE_PASSED);
    DueTest()->set_ended_unix_nanos(int64_t{1030} * 1'000'000'000);
  }
  std::string Path() const { return absl::StrCat(job().submitted().directory(), "/evidence.json"); }

  DriverState state_;
  AgentMonitor monitor_{absl::ZeroDuration()};
  SimulatedDisk disk_;
  JobEvidences evidences_{&disk_};
};

TEST_F(JobEvidenceTest, TheTestThatFollowsTheFailureIsAddedOnceItHasEnded) {
  evidences_.Keep(state_, job(), 5, monitor_);
  evidences_.Refresh(state_);
  ASSERT_NE(evidences_.Find(job()), nullptr);
  EXPECT_FALSE(evidences_.Find(job())->nodes(0).has_machine_tested_at());
  EndTest();
  evidences_.Refresh(state_);
  JobEvidences later(&disk_);
  const control::JobEvidence* evidence = later.Find(job());
  ASSERT_NE(evidence, nullptr);
  EXPECT_EQ(evidence->last_step(), 5);
  EXPECT_EQ(evidence->nodes(0).machine_test().state(), agent::MachineTest::STATE_PASSED);
  EXPECT_EQ(evidence->nodes(0).machine_tested_at().seconds(), 1030);
}

TEST_F(JobEvidenceTest, AQuarantineInPlaceOfTheResultIsAddedToo) {
  evidences_.Keep(state_, job(), 5, monitor_);
  evidences_.Refresh(state_);
  FindNode(&state_, "n0")->mutable_quarantine()->set_evidence("its processes hang");
  evidences_.Refresh(state_);
  EXPECT_EQ(evidences_.Find(job())->nodes(0).quarantine_evidence(), "its processes hang");
}

TEST_F(JobEvidenceTest, AJobThatEndedBeforeTheTestWasAskedForKeepsItsEvidence) {
  state_.mutable_jobs(0)->set_stage_event(0);
  evidences_.Keep(state_, job(), 5, monitor_);
  evidences_.Refresh(state_);
  EndTest();
  evidences_.Refresh(state_);
  EXPECT_EQ(evidences_.Find(job())->nodes(0).machine_test().state(),
            agent::MachineTest::STATE_RUNNING);
}

TEST_F(JobEvidenceTest, OfALargeJobTheRanksThatFailedAndThoseThatStoodStillAreKept) {
  std::vector<control::RankView> ranks(1000);
  for (int rank = 0; rank < 1000; ++rank) {
    ranks[static_cast<size_t>(rank)].mutable_status()->set_rank(rank);
  }
  ranks[500].mutable_status()->set_progress_age_seconds(60);
  const control::JobEvidence evidence = EvidenceOf(state_, job(), 5, ranks);
  ASSERT_EQ(evidence.ranks_size(), 64);
  EXPECT_EQ(evidence.ranks(0).status().rank(), 0);
  EXPECT_EQ(evidence.ranks(62).status().rank(), 500);
  EXPECT_EQ(evidence.ranks(63).status().rank(), 900);
}

TEST_F(JobEvidenceTest, AFileThatIsTooLargeIsIgnored) {
  ASSERT_TRUE(disk_.WriteSoon(Path(), std::string((size_t{1} << 20) + 1, ' ')).ok());
  EXPECT_EQ(evidences_.Find(job()), nullptr);
}

TEST_F(JobEvidenceTest, AFileIsReadOnce) {
  evidences_.Keep(state_, job(), 5, monitor_);
  ASSERT_NE(evidences_.Find(job()), nullptr);
  ASSERT_TRUE(disk_.WriteSoon(Path(), "{}").ok());
  EXPECT_EQ(evidences_.Find(job())->last_step(), 5);
}

TEST_F(JobEvidenceTest, OnlyAJobThatEndedAMomentAgoMayLackItsFile) {
  state_.mutable_jobs(0)->set_attempt(1);
  EXPECT_TRUE(evidences_.MayBeMissing(state_, job()));
  state_.set_num_events(5000);
  EXPECT_FALSE(evidences_.MayBeMissing(state_, job()));
}

}  // namespace
}  // namespace megascale::driver
