#include "controlplane/driver/detection/failure_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "controlplane/driver/detection/testing/test_agents.h"
#include "runtime/telemetry/doing.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using megascale::telemetry::SetDoing;
using plan::InstructionId;
using plan::OpKind;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FailureDetectorTest : public AgentMonitorTest {
 protected:
  absl::Duration StorageFailsFor(const std::string& job_id) const {
    return monitor_.reports().awake() - monitor_.StorageFailures().at(job_id);
  }
  void SetRuns(int rank, InstructionId id) {
    SetDoing({.activity = telemetry::ACTIVITY_INSTRUCTION, .instruction = id},
             RankOf(rank)->mutable_status());
  }
};

TEST_F(FailureDetectorTest, SilentNodeIsLostAfterItsTimeoutAndJoinsAgain) {
  Train();
  const agent::ActualState silent = reports_["n1"];
  reports_.erase("n1");
  EXPECT_THAT(Pass(absl::Milliseconds(5000)), SizeIs(0));
  const std::vector<Event> events = Pass(absl::Milliseconds(500));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].node_lost().node_id(), "n1");
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  const std::vector<Event> back = Report("n1", silent);
  ASSERT_THAT(back, SizeIs(1));
  EXPECT_TRUE(back[0].has_node_joined());
}

// Thousands of nodes are looked at ten times a second, and each of them reports once a second.
TEST_F(FailureDetectorTest, BetweenReportsNothingIsSearchedAndLimitsHoldAllTheSame) {
  Train();
  Pass(absl::Seconds(70));  // in one phase for longer than the limit of 60 s
  RankOf(1)->mutable_status()->set_progress_age_seconds(58);
  for (const auto& [node_id, report] : reports_) Report(node_id, report);
  Tick();
  const int64_t before = monitor_.reports().num_looks();
  const absl::Duration reported = now_;
  while (now_ < reported + absl::Seconds(2)) {
    EXPECT_THAT(Tick(), SizeIs(0)) << now_ - reported;
    now_ += absl::Milliseconds(100);
  }
  EXPECT_EQ(monitor_.reports().num_looks(), before);
  now_ += absl::Milliseconds(100);
  const std::vector<Event> events = Tick();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 1);
}

// The job comes from an old log, before limits had minimums. Its limits affect only its own ranks;
// its machine and the machine's other job go on.
TEST_F(FailureDetectorTest, AJobWithoutPatienceHarmsItselfOnly) {
  state_ = DriverState();
  Apply(Submitted("j", SpecOf(2, 2, 30)), &state_);
  megascale::job::v1::JobSpec hostile = SpecOf(1, 1, 30);
  for (auto* limit : {hostile.mutable_fault()->mutable_heartbeat_interval(),
                      hostile.mutable_fault()->mutable_heartbeat_timeout(),
                      hostile.mutable_fault()->mutable_progress_timeout()}) {
    limit->set_seconds(0);
    limit->set_nanos(2);
  }
  Apply(Submitted("h", hostile), &state_);
  for (const char* node : {"n0", "n1"}) {
    Take(monitor_.OnHello(state_, HelloOf(node, "a", 3), now_));
  }
  Train();
  const std::string node_id = NodeOfRank(*FindJob(state_, "h"), 0);
  agent::ActualJob* actual = reports_[node_id].add_jobs();
  actual->set_job_id("h");
  actual->set_attempt(1);
  actual->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  Pass(absl::Seconds(1));
  ASSERT_EQ(FindJob(state_, "h")->stage(), pb::STAGE_RUN);
  agent::ActualRank* rank = actual->add_ranks();
  rank->set_state(agent::ActualRank::STATE_RUNNING);
  rank->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
  rank->mutable_status()->set_alive_age_seconds(0.1);
  // One report is late, and then two come close together.
  const std::vector<Event> events = Pass(absl::Seconds(5));
  int num_failures = 0;
  for (const Event& event : events) {
    EXPECT_FALSE(event.has_node_lost()) << event.ShortDebugString();
    if (!event.has_rank_failed()) continue;
    EXPECT_EQ(event.rank_failed().job_id(), "h");
    ++num_failures;
  }
  EXPECT_EQ(num_failures, 1);
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(job().attempt(), 1);
  // A job with very long limits does not keep a machine that is gone.
  reports_.erase(node_id);
  const std::vector<Event> lost = Pass(absl::Milliseconds(5500));
  EXPECT_TRUE(std::any_of(lost.begin(), lost.end(),
                          [](const Event& event) { return event.has_node_lost(); }));
}

TEST_F(FailureDetectorTest, TheDriversLimitJudgesNodes) {
  monitor_ = AgentMonitor(now_, absl::Seconds(30));
  for (const char* node : {"n0", "n1"}) Hello(node, "a");
  Train();
  reports_.erase("n1");
  EXPECT_THAT(Pass(absl::Seconds(30)), SizeIs(0));
  const std::vector<Event> events = Pass(absl::Milliseconds(500));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].node_lost().node_id(), "n1");
  EXPECT_EQ(events[0].node_lost().why(), "no heartbeat for 30s");
}

// Agents report ages on their own monotonic clocks, so clocks of different machines are never
// compared, and the wall clock is not an input.
TEST_F(FailureDetectorTest, HoursInWhichTheDriverDidNotRunCauseNothing) {
  Train();
  for (int i = 0; i < 10; ++i) {
    now_ += absl::Hours(8);
    EXPECT_THAT(Tick(), SizeIs(0));
    EXPECT_THAT(Pass(absl::Seconds(2)), SizeIs(0));
  }
}

TEST_F(FailureDetectorTest, ASlowTimerOfTheDriverCausesNothing) {
  Train();
  for (int i = 0; i < 200; ++i) {
    now_ += absl::Seconds(3);  // where a tenth was asked for
    for (const auto& [node_id, report] : reports_) EXPECT_THAT(Report(node_id, report), SizeIs(0));
    EXPECT_THAT(Tick(), SizeIs(0));
  }
}

TEST_F(FailureDetectorTest, AnAgentThatStoodStillForLessThanItsTimeoutCausesNothing) {
  Train();
  const auto reports = reports_;
  for (int i = 0; i < 10; ++i) {
    reports_.erase("n1");
    EXPECT_THAT(Pass(absl::Milliseconds(4500)), SizeIs(0));
    reports_ = reports;
    EXPECT_THAT(Pass(absl::Seconds(1)), SizeIs(0));
  }
}

TEST_F(FailureDetectorTest, AMonotonicClockThatSeemsToGoBackCausesNothing) {
  Train();
  now_ -= absl::Hours(1);
  EXPECT_THAT(Tick(), SizeIs(0));
  EXPECT_THAT(Pass(absl::Seconds(30)), SizeIs(0));
}

TEST_F(FailureDetectorTest, StalledDriverLosesNobody) {
  Train();
  now_ += absl::Seconds(100);
  EXPECT_THAT(Tick(), SizeIs(0));
  EXPECT_THAT(Pass(absl::Seconds(10)), SizeIs(0));
}

TEST_F(FailureDetectorTest, RestartedDriverGivesEveryNodeOneTimeout) {
  Train();
  monitor_ = AgentMonitor(now_);
  reports_.erase("n1");
  Hello("n0", "a");
  EXPECT_THAT(Pass(absl::Seconds(5)), SizeIs(0));
  const std::vector<Event> events = Pass(absl::Milliseconds(500));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].node_lost().node_id(), "n1");
}

TEST_F(FailureDetectorTest, RankWhoseTimerStoppedIsHungAndBlamedBeforeItsPeers) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_progress_age_seconds(80 + rank);
    SetRuns(rank, InstructionId(OpKind::kGatherParameters, 1));
  }
  RankOf(1)->mutable_status()->set_alive_age_seconds(6);
  RankOf(1)->mutable_status()->set_progress_age_seconds(6);
  const std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 1);
  EXPECT_EQ(events[0].rank_failed().failure().failure_class(), telemetry::FAILURE_CLASS_HUNG);
  EXPECT_THAT(events[0].rank_failed().failure().message(), HasSubstr("timer thread has not run"));
}

TEST_F(FailureDetectorTest, ARankThatStopsWhileItsJobLeavesANodeIsHung) {
  Train();
  Event draining;
  draining.mutable_node_draining()->set_node_id("n0");
  draining.mutable_node_draining()->set_incarnation("a");
  Take({draining});
  ASSERT_EQ(job().stage(), pb::STAGE_LEAVE);
  RankOf(2)->mutable_status()->set_alive_age_seconds(6);
  const std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 2);
  EXPECT_EQ(events[0].rank_failed().failure().failure_class(), telemetry::FAILURE_CLASS_HUNG);
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE) << "and is not waited for";
}

TEST_F(FailureDetectorTest, RankWithoutProgressIsBlamedBeforePeersThatWaitForIt) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_progress_age_seconds(90);
    SetRuns(rank, InstructionId(OpKind::kReceiveActivation, 1, 3));
  }
  RankOf(2)->mutable_status()->set_progress_age_seconds(70);
  SetRuns(2, InstructionId(OpKind::kBackward, 0, 1));
  EXPECT_THAT(Pass(absl::Seconds(59)), SizeIs(0));  // the phase has its limit for itself
  const std::vector<Event> events = Pass(absl::Seconds(3));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 2);
  EXPECT_THAT(events[0].rank_failed().failure().message(),
              HasSubstr("no progress for 1m at step 0 in backward B.c0.m1"));
}

// An agent that reports often leaves the text out of most reports, so that it takes few bytes.
TEST_F(FailureDetectorTest, WhatAStalledRankDidStaysKnownUntilItMakesProgress) {
  Train();
  const auto known = [&] {
    for (const agent::ActualRank& rank : monitor_.reports().JobsOn("n0").at(0).ranks()) {
      if (rank.status().rank() == 0) return rank.status().recent();
    }
    return std::string("no such rank");
  };
  telemetry::RankStatus* status = RankOf(0)->mutable_status();
  ASSERT_EQ(NodeOfRank(job(), 0), "n0");
  status->set_progress_age_seconds(5);
  status->set_recent("in F.c0.m1 since 5 s");
  Pass(absl::Seconds(1));
  status->clear_recent();
  status->set_progress_age_seconds(6);
  Pass(absl::Seconds(2));
  EXPECT_EQ(known(), "in F.c0.m1 since 5 s");
  status->set_recent("in F.c0.m1 since 8 s");
  Pass(absl::Seconds(1));
  EXPECT_EQ(known(), "in F.c0.m1 since 8 s");
  status->clear_recent();
  status->set_progress_age_seconds(1);
  Pass(absl::Seconds(1));
  EXPECT_EQ(known(), "") << "it has made progress since";
}

// As after a restart of the driver, when one agent reports a second later than the others.
TEST_F(FailureDetectorTest, RankWithoutProgressIsBlamedThoughItsPhaseWasSeenLast) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_progress_age_seconds(90);
    SetRuns(rank, InstructionId(OpKind::kReduceNorm));
  }
  SetRuns(2, InstructionId(OpKind::kBackward, 0, 1));
  Pass(absl::Seconds(20));
  RankOf(2)->mutable_status()->set_phase(telemetry::PHASE_CHECKPOINT);
  EXPECT_THAT(Pass(absl::Seconds(59)), SizeIs(0)) << "the others have waited for longer";
  const std::vector<Event> events = Pass(absl::Seconds(2));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 2);
}

TEST_F(FailureDetectorTest, OneOfRanksThatAllWaitIsBlamed) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_progress_age_seconds(rank == 1 ? 95 : 90);
    SetRuns(rank, InstructionId(OpKind::kReduceNorm));
  }
  EXPECT_THAT(Pass(absl::Seconds(60)), SizeIs(0));
  EXPECT_THAT(Pass(absl::Seconds(5)), SizeIs(1));
}

// The exchange is piece 2 of a pass. Words say nothing to the detector, whoever sent them.
TEST_F(FailureDetectorTest, BlameFollowsIdsAndNotWords) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_progress_age_seconds(90);
    SetRuns(rank, InstructionId(OpKind::kForward, 0, 1).WithPiece(2));
    RankOf(rank)->mutable_status()->set_doing("forward F.c0.m1");
  }
  SetRuns(3, InstructionId(OpKind::kForward, 0, 1));
  RankOf(3)->mutable_status()->set_doing("all-gather of parameters G.c1");
  RankOf(3)->mutable_status()->set_progress_age_seconds(70);
  Pass(absl::Seconds(59));
  const std::vector<Event> events = Pass(absl::Seconds(3));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 3);
  EXPECT_EQ(events[0].rank_failed().failure().message(),
            "no progress for 1m at step 0 in forward F.c0.m1");
}

TEST_F(FailureDetectorTest, ARankThatSaidNothingIsInNoInstruction) {
  Train();
  RankOf(1)->mutable_status()->set_pid(17);
  RankOf(1)->mutable_status()->set_alive_age_seconds(6);
  const std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().failure().message(),
            "its timer thread has not run for 6s (process 17, in no instruction)");
}

TEST_F(FailureDetectorTest, ARankThatWaitsWhileOthersReadACheckpointIsNotBlamed) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_phase(telemetry::PHASE_LOADING);
    RankOf(rank)->mutable_status()->set_progress_age_seconds(1000);
    SetDoing({.activity = telemetry::ACTIVITY_WAIT_FOR_READS,
              .instruction = InstructionId(OpKind::kReduceNorm)},
             RankOf(rank)->mutable_status());
  }
  RankOf(2)->mutable_status()->set_progress_age_seconds(1);
  SetDoing({.activity = telemetry::ACTIVITY_READ_FOR_PEER, .peer = 0}, RankOf(2)->mutable_status());
  EXPECT_THAT(Pass(absl::Seconds(1)), SizeIs(0));
  EXPECT_THAT(Pass(absl::Seconds(122)), SizeIs(0)) << "the reader makes progress";
  RankOf(2)->mutable_status()->set_progress_age_seconds(121);
  const std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 2);
}

TEST_F(FailureDetectorTest, StartingHasALimitOfItsOwn) {
  Train();
  RankOf(3)->mutable_status()->set_phase(telemetry::PHASE_FIRST_STEP);
  RankOf(3)->mutable_status()->set_progress_age_seconds(200);
  EXPECT_THAT(Pass(absl::Seconds(120)), SizeIs(0));
  EXPECT_THAT(Pass(absl::Seconds(2)), SizeIs(1));
}

TEST_F(FailureDetectorTest, RankThatIsNeverStartedIsNoticed) {
  for (const char* node : {"n0", "n1"}) {
    JobOn(node)->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  }
  Pass(absl::Seconds(1));
  for (int rank = 0; rank < 3; ++rank) RankOf(rank);
  const std::vector<Event> events = Pass(absl::Seconds(122));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), 3);
  EXPECT_THAT(events[0].rank_failed().failure().message(), HasSubstr("was not started within 2m"));
}

TEST_F(FailureDetectorTest, PreflightThatDoesNotEndIsNoticed) {
  JobOn("n0")->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  JobOn("n1")->mutable_preflight()->set_state(agent::Preflight::STATE_RUNNING);
  const std::vector<Event> events = Pass(absl::Seconds(122));
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].rank_failed().node_id(), "n1");
  EXPECT_EQ(events[1].rank_failed().rank(), -1);
}

TEST_F(FailureDetectorTest, APreflightThatGoesOnMayTakeLongerThanTheLimit) {
  for (const char* node : {"n0", "n1"}) {
    JobOn(node)->mutable_preflight()->set_state(agent::Preflight::STATE_RUNNING);
  }
  for (int i = 1; i <= 5; ++i) {
    JobOn("n0")->mutable_preflight()->set_progress(i);
    EXPECT_THAT(Pass(absl::Seconds(100)), SizeIs(0)) << i;
  }
  const std::vector<Event> events = Pass(absl::Seconds(121));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0].rank_failed().failure().message(), HasSubstr("preflight did not end"));
}

TEST_F(FailureDetectorTest, StorageThatFailsForTooLongFailsTheJobAndACommitBeginsAnew) {
  state_.mutable_jobs(0)
      ->mutable_submitted()
      ->mutable_spec()
      ->mutable_fault()
      ->mutable_checkpoint_timeout()
      ->set_seconds(30);
  Train();
  JobOn("n1")->set_storage_error("write /c/x: disk full");
  EXPECT_THAT(Pass(absl::Seconds(20)), SizeIs(0)) << "training goes on";
  EXPECT_EQ(StorageFailsFor("j"), absl::Seconds(19.5));
  // One stored shard clears the error, but when it comes back it is the same failure.
  JobOn("n1")->clear_storage_error();
  Pass(absl::Seconds(2));
  JobOn("n1")->set_storage_error("write /c/x: disk full");
  Pass(absl::Seconds(2));
  EXPECT_EQ(StorageFailsFor("j"), absl::Seconds(23.5));
  auto* manifest = JobOn("n0")->add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(10);
  manifest->set_directory(CheckpointDirectory(job()) + "/step-10");
  EXPECT_THAT(Pass(absl::Seconds(30)), SizeIs(1)) << "the commit";
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  const std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  const auto& failed = events[0].rank_failed();
  EXPECT_EQ(failed.rank(), -1);
  EXPECT_EQ(failed.node_id(), "n1");
  EXPECT_EQ(failed.failure().failure_class(), telemetry::FAILURE_CLASS_STORAGE);
  EXPECT_EQ(
      failed.failure().message(),
      std::string(
          "no checkpoint could be written for 30s (fault.checkpoint_timeout): write /c/x: disk "
          "full; the last good one is of step 10: ") +
          CheckpointDirectory(job()) + "/step-10");
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  EXPECT_EQ(job().reason(), "StorageFailed");
}

// SpecOf: start_timeout is 120 s, progress_timeout 60 s.
TEST_F(FailureDetectorTest, APhaseThatOnlyANewerAgentKnowsHasTheLongerLimit) {
  Train();
  RankOf(1)->mutable_status()->set_phase(static_cast<telemetry::Phase>(77));
  for (int age = 10; age <= 110; age += 10) {
    RankOf(1)->mutable_status()->set_progress_age_seconds(age);
    EXPECT_THAT(Pass(absl::Seconds(10)), SizeIs(0)) << age;
  }
  RankOf(1)->mutable_status()->set_progress_age_seconds(130);
  const std::vector<Event> events = Pass(absl::Seconds(15));
  ASSERT_THAT(events, SizeIs(testing::Ge(1)));
  EXPECT_EQ(events[0].rank_failed().rank(), 1);
}

}  // namespace
}  // namespace megascale::driver
