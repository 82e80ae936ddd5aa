// What a job's folder has beside the loss log: evidence.json, and job.json at the end of this file.
#include "controlplane/driver/shell/job_evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/shell/step_counts.h"
#include "controlplane/driver/shell/testing/shell_test_base.h"
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
  absl::StatusOr<control::JobEvidence> Read() { return ReadEvidence(job(), &disk_); }
  std::string Path() const { return absl::StrCat(job().submitted().directory(), "/evidence.json"); }

  DriverState state_;
  AgentMonitor monitor_{absl::ZeroDuration()};
  SimulatedDisk disk_;
  JobEvidences evidences_{&disk_};
};

TEST_F(JobEvidenceTest, TheTestThatFollowsTheFailureIsAddedOnceItHasEnded) {
  evidences_.Keep(state_, job(), 5, "", monitor_);
  evidences_.Refresh(state_);
  ASSERT_TRUE(Read().ok()) << Read().status();
  EXPECT_FALSE(Read()->nodes(0).has_machine_tested_at());
  EndTest();
  evidences_.Refresh(state_);
  const auto evidence = Read();
  ASSERT_TRUE(evidence.ok()) << evidence.status();
  EXPECT_EQ(evidence->last_step(), 5);
  EXPECT_EQ(evidence->nodes(0).machine_test().state(), agent::MachineTest::STATE_PASSED);
  EXPECT_EQ(evidence->nodes(0).machine_tested_at().seconds(), 1030);
}

TEST_F(JobEvidenceTest, AMachineHasItsWorstExchangeAndItsRoundInTheFile) {
  auto* exchanges = FindNode(&state_, "n0")->mutable_exchanges();
  for (const double rate : {3e9, 1e9, 2e9}) {
    control::ExchangeResult* result = exchanges->add_results();
    result->set_node_id(absl::StrCat("n", rate / 1e9));
    result->set_bytes_per_second(rate);
    result->set_rate_min(5e8);
    result->mutable_ended_at()->set_seconds(990);
  }
  exchanges->mutable_round()->set_failure("n2 stops in the middle");
  exchanges->mutable_round()->add_node_ids("n2");
  evidences_.Keep(state_, job(), 5, "", monitor_);
  const auto evidence = Read();
  ASSERT_TRUE(evidence.ok()) << evidence.status();
  const control::NodeEvidence& node = evidence->nodes(0);
  EXPECT_EQ(node.worst_exchange().node_id(), "n1") << "the slowest";
  EXPECT_EQ(node.worst_exchange().bytes_per_second(), 1e9);
  EXPECT_EQ(node.worst_exchange().rate_min(), 5e8);
  EXPECT_EQ(node.worst_exchange().ended_at().seconds(), 990);
  EXPECT_EQ(node.exchange_round().failure(), "n2 stops in the middle");
  EXPECT_EQ(node.exchange_round().node_ids(0), "n2");
}

TEST_F(JobEvidenceTest, AQuarantineInPlaceOfTheResultIsAddedToo) {
  evidences_.Keep(state_, job(), 5, "", monitor_);
  evidences_.Refresh(state_);
  FindNode(&state_, "n0")->mutable_quarantine()->set_evidence("its processes hang");
  evidences_.Refresh(state_);
  EXPECT_EQ(Read()->nodes(0).quarantine_evidence(), "its processes hang");
}

TEST_F(JobEvidenceTest, AJobThatEndedBeforeTheTestWasAskedForKeepsItsEvidence) {
  state_.mutable_jobs(0)->set_stage_event(0);
  evidences_.Keep(state_, job(), 5, "", monitor_);
  evidences_.Refresh(state_);
  EndTest();
  evidences_.Refresh(state_);
  EXPECT_EQ(Read()->nodes(0).machine_test().state(), agent::MachineTest::STATE_RUNNING);
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

TEST_F(JobEvidenceTest, WhatRanksDidInAnEarlierAttemptIsNotToldOfALaterFailure) {
  for (const int64_t culprit_attempt : {int64_t{1}, int64_t{2}}) {
    JobRecord* job = state_.mutable_jobs(0);
    job->set_stage(pb::STAGE_RUN);
    job->set_attempt(1);
    job->clear_placements();
    job->add_placements()->set_node_id("n0");
    evidences_.OnEvent(Failed(1, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_EXITED), state_,
                       monitor_);
    job->mutable_placements(0)->set_node_id("n1");
    job->set_attempt(2);
    job->mutable_culprit()->set_attempt(culprit_attempt);
    job->mutable_culprit()->set_rank(0);
    evidences_.Keep(state_, *job, 5, "", monitor_);
    const auto evidence = Read();
    ASSERT_TRUE(evidence.ok()) << evidence.status();
    ASSERT_EQ(evidence->ranks_size(), 1);
    EXPECT_EQ(evidence->ranks(0).node_id(), culprit_attempt == 1 ? "n0" : "n1");
  }
}

TEST_F(JobEvidenceTest, OnlyNodesThatHoldRanksOfTheJobMayWarnAndBriefly) {
  JobRecord* job = state_.mutable_jobs(0);
  job->set_stage(pb::STAGE_RUN);
  job->set_attempt(1);
  job->add_placements()->set_node_id("n0");
  agent::ActualState report;
  agent::ActualJob* actual = report.add_jobs();
  actual->set_job_id("j");
  actual->set_attempt(1);
  actual->add_warnings(std::string(10'000, 'x'));
  evidences_.OnReport("n0", report, state_);
  actual->set_warnings(0, "of a stranger");
  evidences_.OnReport("n9", report, state_);
  evidences_.Keep(state_, *job, 5, "", monitor_);
  const auto evidence = Read();
  ASSERT_TRUE(evidence.ok()) << evidence.status();
  ASSERT_EQ(evidence->warnings_size(), 1);
  EXPECT_LT(evidence->warnings(0).size(), 600u);
}

TEST_F(JobEvidenceTest, AFileThatIsTooLargeIsIgnored) {
  ASSERT_TRUE(disk_.WriteSoon(Path(), std::string((size_t{1} << 20) + 1, ' ')).ok());
  EXPECT_EQ(Read().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(JobEvidenceTest, OnlyAJobThatEndedAMomentAgoMayLackItsFile) {
  state_.mutable_jobs(0)->set_attempt(1);
  EXPECT_TRUE(evidences_.MayBeMissing(state_, job()));
  state_.set_num_events(5000);
  EXPECT_FALSE(evidences_.MayBeMissing(state_, job()));
}

// --- steps that are not logged yet --------------------------------------------------------------

// A job of one attempt that trains and has completed a step of one second.
TEST(StepCountsTest, AStallIsMeasuredWhileTheDriverIsAwake) {
  JobRecord job;
  job.set_attempt(1);
  job.mutable_submitted()->set_job_id("job");
  job.set_stage(v1::STAGE_RUN);
  job.set_state(megascale::control::v1::JOB_STATE_RUNNING);
  megascale::agent::v1::ActualJob actual;
  auto& step = *actual.add_steps();
  step.set_attempt(1);
  step.set_step(1);
  step.set_seconds(1);
  StepCounts counts;
  // The wall clock was set an hour back meanwhile: it says nothing.
  const absl::Time wall = absl::FromUnixSeconds(1'000'000);
  counts.Count(job, actual, 1, {absl::Seconds(50), wall, absl::Seconds(10)});
  EXPECT_FALSE(counts.StandsStill(job, absl::Seconds(15)));
  EXPECT_TRUE(counts.StandsStill(job, absl::Seconds(16)));
  // Three usual steps are the longer wait where steps are slow.
  step.set_step(2);
  step.set_seconds(9);
  counts.Count(job, actual, 2, {absl::Seconds(60), wall, absl::Seconds(20)});
  EXPECT_FALSE(counts.StandsStill(job, absl::Seconds(34)));
  EXPECT_TRUE(counts.StandsStill(job, absl::Seconds(36)));
  job.set_attempt(2);
  EXPECT_FALSE(counts.StandsStill(job, absl::Seconds(99))) << "the new attempt has no step yet";
}

// --- job.json -------------------------------------------------------------------------------

constexpr char kPath[] = "/state/jobs/j/job.json";

class SilentLink : public AgentLink {
 public:
  void SendDesired(const agent::DesiredState& desired) override {}
  void Close(const absl::Status& why) override {}
};

// Job "j"; what the shell leaves for later is done by DoLater.
class JobFileTest : public ShellTestBase {
 protected:
  void SetUp() override {
    Open();
    Round([&] {
      const Event submitted = Submitted("j", SpecOf(1, 1, 2000));
      ASSERT_TRUE(shell_->Submit(submitted.job_submitted()).ok());
    });
  }
  void Open() {
    DriverShell::Options options;
    options.state_directory = "/state";
    options.files = &disk_;
    options.do_later = [this](std::function<void()> work) { later_.push_back(std::move(work)); };
    Begin(&disk_, std::move(options));
  }
  void DoLater() {
    for (const auto& work : std::exchange(later_, {})) work();
  }

  std::vector<std::function<void()>> later_;
};

TEST_F(JobFileTest, NoRoundWaitsForIt) {
  EXPECT_FALSE(disk_.Exists(kPath));
  DoLater();
  const auto text = disk_.ReadAt(kPath, 0, 1 << 16);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, ::testing::HasSubstr("\"steps\": \"2000\""));
  Round([] {});
  EXPECT_TRUE(later_.empty()) << "it is written once";
}

TEST_F(JobFileTest, ADriverThatEndsBeforeItIsWrittenLeavesItToTheNextOne) {
  Round([&] { shell_->OnHello(HelloOf("n0", "a", 1), std::make_shared<SilentLink>()); });
  ASSERT_EQ(job().attempt(), 1);
  later_.clear();
  Open();
  Round([] {});
  DoLater();
  EXPECT_TRUE(disk_.Exists(kPath));
}

}  // namespace
}  // namespace megascale::driver
