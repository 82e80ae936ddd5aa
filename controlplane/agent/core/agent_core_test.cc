#include "controlplane/agent/core/agent_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/testing/test_agent_core.h"

namespace megascale::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(AgentCoreTest, RunPreparesMemoryThenStartsHostAndLocalRanks) {
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), ElementsAre("prepare j/1", "start host as 1", "start rank 0 as 2",
                                   "start rank 1 as 3"));
  EXPECT_EQ(Report().applied_version(), 1);
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(Job().num_processes(), 3);
  EXPECT_EQ(Job().host().pid(), 1001);
  EXPECT_EQ(RankOf(1).status().pid(), 1003);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_RUNNING);
  EXPECT_THAT(Apply(), IsEmpty());  // told again
}

TEST_F(AgentCoreTest, AJobWithoutARankHereNeedsNoProcess) {
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  for (v1::Placement& placement : *job->mutable_placements()) placement.set_node_id("n1");
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 1);
}

TEST_F(AgentCoreTest, RanksComeAsRuns) {
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->clear_placements();
  for (const int first : {0, 3, 5}) {
    v1::Placement* run = job->add_placements();
    run->set_rank(first);
    run->set_num_ranks(first == 3 ? 2 : 3);
    run->set_node_id(first == 3 ? "n0" : "n1");
  }
  EXPECT_THAT(Apply(), ElementsAre("prepare j/1", "start host as 1", "start rank 3 as 2",
                                   "start rank 4 as 3"));
}

TEST_F(AgentCoreTest, WhatStaysTheSameDuringAnAttemptIsToldOnce) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1)
      ->mutable_spec()
      ->mutable_fault()
      ->mutable_heartbeat_interval()
      ->set_nanos(250'000'000);
  Apply();
  link::v1::FromHost answer;
  answer.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
  core_.OnHostMessage(1, answer);
  Settle();
  End(1, Ours());
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->clear_placements();
  job->set_as_before(true);
  EXPECT_THAT(Apply(), ElementsAre("prepare j/1", "start host as 2", "start rank 0 as 3",
                                   "start rank 1 as 4"));
  EXPECT_EQ(core_.report_interval(), absl::Milliseconds(250));
}

TEST_F(AgentCoreTest, WhatIsLeftOutOfAnAttemptThatIsNotKnownIsWaitedFor) {
  Want(DesiredJob::PHASE_RUN, 1)->set_as_before(true);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Report().jobs_size(), 0);
  Want(DesiredJob::PHASE_HOLD, 1);
  Apply();
  Want(DesiredJob::PHASE_RUN, 2)->set_as_before(true);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 1);
  Want(DesiredJob::PHASE_RUN, 2);
  EXPECT_THAT(Apply(), ElementsAre("prepare j/2", "start host as 1", "start rank 0 as 2",
                                   "start rank 1 as 3"));
}

TEST_F(AgentCoreTest, PreflightRunsTheHostAloneUntilItAnswers) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  EXPECT_THAT(Apply(), ElementsAre("start preflight as 1"));
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_RUNNING);
  link::v1::FromHost answer;
  answer.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
  core_.OnHostMessage(1, answer);
  EXPECT_THAT(Settle(), ElementsAre("kill 1"));
  End(1, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 1);
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_PASSED);
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), ElementsAre("prepare j/1", "start host as 2", "start rank 0 as 3",
                                   "start rank 1 as 4"));
}

class StoreCheckTest : public AgentCoreTest {
 protected:
  // The preflight of an attempt whose host process has passed already.
  void Preflight(int64_t attempt) {
    Want(DesiredJob::PHASE_PREFLIGHT, attempt)->mutable_spec()->set_store("redis://host:6379");
    EXPECT_THAT(Apply(), ElementsAre(absl::StrCat("check store of j/", attempt),
                                     absl::StrCat("start preflight as ", attempt)));
    link::v1::FromHost answer;
    answer.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
    core_.OnHostMessage(attempt, answer);
    EXPECT_THAT(Settle(), ElementsAre(absl::StrCat("kill ", attempt)));
    End(attempt, Ours());
    EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_RUNNING) << "the store is unknown";
  }
};

TEST_F(StoreCheckTest, ThePreflightPassesWhenTheStoreServes) {
  Preflight(1);
  core_.OnStoreChecked("j", 1, absl::OkStatus(), now_);
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_PASSED);
  EXPECT_THAT(Settle(), IsEmpty());
}

TEST_F(StoreCheckTest, AStoreThatIsAwayEndsTheAttemptAndNotTheJob) {
  Preflight(1);
  now_ += absl::Seconds(7);
  core_.OnStoreChecked("j", 1, absl::UnavailableError("store redis://host:6379: is away"), now_);
  now_ += absl::Seconds(2);
  Settle();
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_RUNNING);
  EXPECT_EQ(Job().host().failure().failure_class(), telemetry::v1::FAILURE_CLASS_RENDEZVOUS);
  EXPECT_EQ(Job().host().failure().message(), "store redis://host:6379: is away");
  EXPECT_EQ(Job().host().failure().age_seconds(), 2) << "the earliest failure is the cause";
  Preflight(2);
  core_.OnStoreChecked("j", 1, absl::OkStatus(), now_);
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_RUNNING) << "of an older attempt";
  core_.OnStoreChecked("j", 2, absl::OkStatus(), now_);
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_PASSED);
}

TEST_F(StoreCheckTest, AStoreThatRefusesUsRefusesTheJob) {
  Preflight(1);
  core_.OnStoreChecked("j", 1, absl::FailedPreconditionError("store redis://host:6379: NOAUTH"),
                       now_);
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_REFUSED);
  EXPECT_EQ(Job().preflight().message(), "store redis://host:6379: NOAUTH");
  EXPECT_FALSE(Job().host().has_failure());
}

TEST_F(AgentCoreTest, WhatAStoreFailedToServeIsTheCauseAndWhatTheRankSaidItsConsequence) {
  Run();
  Fail(2, telemetry::v1::FAILURE_CLASS_ABORTED);
  ProcessEnd end = Exited(1);
  end.store_failure = "store redis://host:6379: is away";
  End(2, end);
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_RENDEZVOUS);
  EXPECT_EQ(RankOf(0).failure().message(), "store redis://host:6379: is away\nsaid so");
}

TEST_F(AgentCoreTest, RunWaitsUntilThePreflightIsReaped) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  Apply();
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1"));
  End(1, Ours());
  EXPECT_EQ(Settle().size(), 4u);
}

TEST_F(AgentCoreTest, HoldKillsEverythingAndKeepsWhatIsKnown) {
  Run();
  Step(2, 1);
  Hold(0, 1, 10);
  Want(DesiredJob::PHASE_HOLD, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  EXPECT_EQ(Report().applied_version(), 1);
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 2);
  EXPECT_EQ(Job().num_processes(), 0);
  EXPECT_EQ(Job().ranks_size(), 0);  // they did not fail
  EXPECT_EQ(Job().snapshots_size(), 1);
  EXPECT_EQ(Job().steps_size(), 1);
}

TEST_F(AgentCoreTest, AJobThatIsNotListedIsEndedAndForgotten) {
  Run();
  Want(DesiredJob::PHASE_RUN, 1);
  desired_.clear_jobs();
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  for (const int64_t process : {1, 2}) End(process, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 1);
  End(3, Ours());
  EXPECT_THAT(Settle(), ElementsAre("drop j"));
  EXPECT_EQ(Report().jobs_size(), 0);
  EXPECT_EQ(Report().applied_version(), 2);
}

TEST_F(AgentCoreTest, StopAsksOnceAndReportsStoppedRanks) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1)->set_stop_with_checkpoint(true);
  EXPECT_THAT(Apply(), ElementsAre("tell 2 stop with checkpoint", "tell 3 stop with checkpoint"));
  EXPECT_THAT(Settle(), IsEmpty());
  Finish(2, /*stopped=*/true);
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_STOPPED);
  EXPECT_EQ(RankOf(0).status().step(), 42);
  Finish(3, /*stopped=*/true);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().num_processes(), 1);  // the host may still write the checkpoint
}

TEST_F(AgentCoreTest, StopKillsRanksAfterTheGrace) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1);
  Apply();
  EXPECT_EQ(core_.NextWake(), now_ + absl::Seconds(30));
  now_ += absl::Seconds(20);
  Want(DesiredJob::PHASE_STOP, 1);  // said again: the grace does not begin anew
  EXPECT_THAT(Apply(), IsEmpty());
  now_ += absl::Seconds(10);
  EXPECT_THAT(Settle(), ElementsAre("kill 2", "kill 3"));
  End(2, Ours());
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
  EXPECT_EQ(RankOf(0).failure().message(), "did not stop within 30s and was killed");
}

TEST_F(AgentCoreTest, StopBeforeTheRanksStartedLeavesNothingToStop) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  Apply();
  Want(DesiredJob::PHASE_STOP, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1"));
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_STOPPED);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_STOPPED);
}

TEST_F(AgentCoreTest, ANewAttemptWaitsUntilTheOldOneIsReaped) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2);
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  End(1, Ours());
  End(2, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(Report().applied_version(), 1);
  End(3, Ours());
  EXPECT_THAT(Settle(), ElementsAre("prepare j/2", "start host as 4", "start rank 0 as 5",
                                    "start rank 1 as 6"));
  EXPECT_EQ(Job().attempt(), 2);
}

TEST_F(AgentCoreTest, ANewAttemptForgetsTheStepsBehindItsRestorePoint) {
  Run();
  for (const int64_t step : {1, 2, 3, 4}) Step(2, step);
  StoreShard(1, 0, 2);
  Want(DesiredJob::PHASE_RUN, 2)->mutable_restore()->set_step(2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  ASSERT_EQ(Job().steps_size(), 2);  // 1 and 2 are still not acknowledged
  EXPECT_EQ(Job().steps(1).step(), 2);
  EXPECT_EQ(Job().shards_size(), 0);
}

TEST_F(AgentCoreTest, AnOlderVersionIsIgnored) {
  Run();
  const v1::DesiredState newest = desired_;
  Want(DesiredJob::PHASE_HOLD, 1);
  desired_.set_version(newest.version() - 1);
  EXPECT_THAT(Apply(), IsEmpty());
  Want(DesiredJob::PHASE_HOLD, 1);
  desired_.set_incarnation("i0");
  EXPECT_THAT(Apply(), IsEmpty());
}

TEST_F(AgentCoreTest, AnOlderAttemptIsRefused) {
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 2);
}

TEST_F(AgentCoreTest, WhatIsSaidOfAReapedProcessIsIgnored) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  Step(2, 7);
  StoreShard(1, 0, 7);
  Fail(3, telemetry::v1::FAILURE_CLASS_DIVERGED);
  End(3, Exited(1));
  core_.OnHostProgress(1);
  EXPECT_EQ(Job().steps_size(), 0);
  EXPECT_EQ(Job().shards_size(), 0);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_RUNNING);
}

TEST_F(AgentCoreTest, ARestartedHostIsToldEverythingThatIsNotDone) {
  Run();
  Hold(0, 1, 10);
  Hold(1, 1, 10);
  EXPECT_THAT(Settle(),
              ElementsAre("tell 1 persist rank 0 step 10", "tell 1 persist rank 1 step 10"));
  StoreShard(1, 0, 10);
  EXPECT_THAT(Settle(), ElementsAre("mark rank 0 step 10"));
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->add_finalize()->set_step(10);
  EXPECT_THAT(Apply(), ElementsAre("tell 1 finalize 10"));
  End(1, Killed(SIGKILL));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Settle(), ElementsAre("start host as 4", "tell 4 persist rank 1 step 10",
                                    "tell 4 finalize 10"));
}

TEST_F(AgentCoreTest, SnapshotsOfAnOlderAttemptAreReportedButNotWritten) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  Hold(0, 1, 10);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().snapshots(0).attempt(), 1);
}

TEST_F(AgentCoreTest, ShardsAndManifestsAreReportedUntilCommittedOrSuperseded) {
  Run();
  StoreShard(1, 0, 10);
  StoreShard(1, 1, 20);
  link::v1::FromHost message;
  message.mutable_manifest()->set_attempt(1);
  message.mutable_manifest()->set_step(20);
  core_.OnHostMessage(1, message);
  EXPECT_EQ(Job().shards_size(), 2);
  EXPECT_EQ(Job().manifests_size(), 1);
  v1::CheckpointId* committed = Want(DesiredJob::PHASE_RUN, 1)->add_committed();
  committed->set_attempt(1);
  committed->set_step(20);
  EXPECT_THAT(Apply(), IsEmpty());  // deleting is another agent's duty
  EXPECT_EQ(Job().shards_size(), 0);
  EXPECT_EQ(Job().manifests_size(), 0);
}

TEST_F(AgentCoreTest, TheDeletingHostIsToldEachNewSetOfCommits) {
  Run();
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->set_delete_checkpoints(true);
  job->add_committed()->set_step(10);
  EXPECT_THAT(Apply(), ElementsAre("tell 1 retain 1"));
  desired_.set_version(++version_);
  EXPECT_THAT(Apply(), IsEmpty());
  job->add_committed()->set_step(20);
  EXPECT_THAT(Apply(), ElementsAre("tell 1 retain 2"));
}

TEST_F(AgentCoreTest, RetentionIsReportedUntilTheNextAttempt) {
  Run();
  EXPECT_FALSE(Job().has_retained());
  link::v1::FromHost message;
  message.mutable_retained()->mutable_newest()->set_attempt(1);
  message.mutable_retained()->mutable_newest()->set_step(20);
  core_.OnHostMessage(1, message);
  EXPECT_EQ(Job().retained().step(), 20);
  End(1, Killed(SIGKILL));  // the deletion was done
  EXPECT_EQ(Job().retained().step(), 20);
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {2, 3}) End(process, Ours());
  Settle();
  EXPECT_EQ(Job().attempt(), 2);
  EXPECT_FALSE(Job().has_retained());
}

TEST_F(AgentCoreTest, AStorageErrorIsReportedUntilAWriteSucceeds) {
  Run();
  link::v1::FromHost message;
  message.mutable_storage_error()->set_message("disk is full");
  core_.OnHostMessage(1, message);
  EXPECT_EQ(Job().storage_error(), "disk is full");
  StoreShard(1, 0, 10);
  EXPECT_EQ(Job().storage_error(), "");
}

TEST_F(AgentCoreTest, AWarningOfARankIsReportedForAsLongAsItsAttemptLasts) {
  Run();
  link::v1::FromWorker message;
  message.set_warning("another machine read the checkpoint");
  for (const int64_t process : {2, 3, 2}) core_.OnWorkerMessage(process, message);
  ASSERT_EQ(Job().warnings_size(), 1);
  EXPECT_EQ(Job().warnings(0), "another machine read the checkpoint");
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  EXPECT_EQ(Job().attempt(), 2);
  EXPECT_EQ(Job().warnings_size(), 0);
}

TEST_F(AgentCoreTest, AStepIsReportedOnceUntilItIsAcknowledged) {
  Run();
  for (const int64_t step : {1, 2, 3}) {
    Step(2, step);
    Step(3, step);
  }
  ASSERT_EQ(Job().steps_size(), 3);
  Want(DesiredJob::PHASE_RUN, 1)->set_acked_step(2);
  Apply();
  ASSERT_EQ(Job().steps_size(), 1);
  EXPECT_EQ(Job().steps(0).step(), 3);
  Step(3, 2);  // late
  EXPECT_EQ(Job().steps_size(), 1);
}

TEST_F(AgentCoreTest, AnAgentWithoutDutyKeepsNoSteps) {
  Want(DesiredJob::PHASE_RUN, 1)->set_step_duty(v1::STEP_DUTY_NONE);
  Apply();
  EXPECT_TRUE(Step(2, 1)) << "now the rank trains, which the driver waits for";
  EXPECT_FALSE(Step(2, 2));
  EXPECT_EQ(Job().steps_size(), 0);
  Want(DesiredJob::PHASE_RUN, 1)->set_step_duty(v1::STEP_DUTY_REPORT);
  Apply();
  EXPECT_EQ(Job().steps_size(), 0) << "it had kept them";
  EXPECT_TRUE(Step(2, 3));
  EXPECT_EQ(Job().steps_size(), 1);
}

TEST_F(AgentCoreTest, ADeputyReportsItsStepsWhenItIsToldToAndWhenNoRankRuns) {
  Want(DesiredJob::PHASE_RUN, 1)->set_step_duty(v1::STEP_DUTY_KEEP);
  Apply();
  for (const int64_t step : {1, 2, 3}) Step(2, step);
  EXPECT_EQ(Job().steps_size(), 0);
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->set_step_duty(v1::STEP_DUTY_KEEP);
  job->set_acked_step(1);
  Apply();
  job = Want(DesiredJob::PHASE_RUN, 1);
  job->set_step_duty(v1::STEP_DUTY_REPORT);
  job->set_acked_step(1);
  Apply();
  ASSERT_EQ(Job().steps_size(), 2);
  EXPECT_EQ(Job().steps(0).step(), 2);
  job = Want(DesiredJob::PHASE_RUN, 1);
  job->set_step_duty(v1::STEP_DUTY_KEEP);
  Apply();
  EXPECT_EQ(Job().steps_size(), 0);
  End(2, Killed(SIGSEGV));
  EXPECT_EQ(Job().steps_size(), 0) << "the other rank still runs";
  End(3, Killed(SIGSEGV));
  EXPECT_EQ(Job().steps_size(), 2) << "the report that tells the end brings the steps";
}

// The agents that keep the steps may be others in the next attempt.
TEST_F(AgentCoreTest, StepsBeforeTheRestorePointAreReportedByTheAgentThatKeptThem) {
  Want(DesiredJob::PHASE_RUN, 1)->set_step_duty(v1::STEP_DUTY_KEEP);
  Apply();
  for (const int64_t step : {1, 2, 3}) Step(2, step);
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 2);
  job->set_step_duty(v1::STEP_DUTY_NONE);
  job->mutable_restore()->set_step(2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  ASSERT_EQ(Job().attempt(), 2);
  ASSERT_EQ(Job().steps_size(), 2);
  EXPECT_EQ(Job().steps(1).step(), 2);
}

TEST_F(AgentCoreTest, AFailureIsReportedWithItsAge) {
  Run();
  End(2, Killed(SIGSEGV));
  EXPECT_EQ(RankOf(0).failure().age_seconds(), 0);
  now_ += absl::Milliseconds(2500);
  Settle();
  EXPECT_EQ(RankOf(0).failure().age_seconds(), 2.5);
}

TEST_F(AgentCoreTest, HoursInWhichTheAgentStoodStillEndNothing) {
  Run();
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Hours(8);
    EXPECT_THAT(Settle(), IsEmpty());
  }
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_RUNNING);
}

TEST_F(AgentCoreTest, ADrainIsOverWhenTheDriverKnowsOfItAndNothingIsLeft) {
  Run();
  EXPECT_FALSE(Report().draining());
  core_.Drain();
  EXPECT_TRUE(Report().draining());
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_RUNNING) << "its jobs leave by themselves";
  desired_.set_version(++version_);
  desired_.set_draining(true);
  Apply();
  EXPECT_FALSE(core_.drained());
  desired_.set_version(++version_);
  desired_.clear_jobs();
  Apply();
  EXPECT_FALSE(core_.drained());
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  EXPECT_FALSE(core_.has_processes());
  EXPECT_THAT(Settle(), ElementsAre("drop j"));
  EXPECT_TRUE(core_.drained());
}

TEST_F(AgentCoreTest, HeartbeatsShowInTheReport) {
  Run();
  telemetry::v1::RankStatus status;
  status.set_phase(telemetry::v1::PHASE_TRAINING);
  status.set_step(5);
  status.set_alive_age_seconds(0.25);
  const v1::ActualState state = core_.Report({{2, status}, {1, status}});
  EXPECT_EQ(state.jobs(0).ranks(0).status().step(), 5);
  EXPECT_EQ(state.jobs(0).ranks(0).status().pid(), 1002);
  EXPECT_EQ(state.jobs(0).host().alive_age_seconds(), 0.25);
}

// Eight ranks and a host that all stand still: what the driver gets unasked stays within its bound,
// and no rank's text is lost.
TEST_F(AgentCoreTest, WhatStalledRanksDidIsAtMostOneKibibyteASecond) {
  for (const int64_t nanos : {1'000'000'000, 250'000'000}) {
    DesiredJob* job = Want(DesiredJob::PHASE_RUN, version_ + 1);
    google::protobuf::Duration* interval =
        job->mutable_spec()->mutable_fault()->mutable_heartbeat_interval();
    interval->set_seconds(nanos / 1'000'000'000);
    interval->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
    job->clear_placements();
    for (int rank = 0; rank < 8; ++rank) {
      v1::Placement* placement = job->add_placements();
      placement->set_rank(rank);
      placement->set_node_id("n0");
    }
    Apply();
    std::map<int64_t, telemetry::v1::RankStatus> heartbeats;
    for (int64_t process = 1; process < 100; ++process) {
      heartbeats[process].set_progress_age_seconds(9);
      heartbeats[process].set_recent("in F.c0.m" + std::string(500, '1'));
    }
    const v1::ActualState state = core_.Report(heartbeats);
    ASSERT_EQ(state.jobs(0).ranks_size(), 8);
    size_t num_bytes = 0;
    for (const ActualRank& rank : state.jobs(0).ranks()) {
      num_bytes += rank.status().recent().size();
      EXPECT_EQ(rank.status().recent().substr(0, 9), "in F.c0.m");
    }
    EXPECT_LE(num_bytes, AgentCore::kUnaskedBytesMax * nanos / 1'000'000'000);
    // With the numbers of the ranks, which are no diagnosis.
    EXPECT_LE(state.ByteSizeLong(), num_bytes + 1024);
    // A short text stays whole.
    for (auto& [process, status] : heartbeats) status.set_recent("in F.c0.m1 of step 9");
    EXPECT_EQ(core_.Report(heartbeats).jobs(0).ranks(7).status().recent(), "in F.c0.m1 of step 9");
    for (const auto& [process, status] : heartbeats) End(process, Ours());
    desired_.clear_jobs();
    desired_.set_version(++version_);
    Apply();
  }
}

// Job "j" stands still; job "k" changes all the time, and each change is reported at once.
TEST_F(AgentCoreTest, TextsOfStalledRanksKeepTheirBoundBesideAJobThatIsReportedOften) {
  Want(DesiredJob::PHASE_RUN, 1);
  DesiredJob* busy = desired_.add_jobs();
  *busy = desired_.jobs(0);
  busy->set_job_id("k");
  Apply();
  std::map<int64_t, telemetry::v1::RankStatus> heartbeats;
  for (int64_t process = 1; process < 10; ++process) {
    heartbeats[process].set_progress_age_seconds(9);
    heartbeats[process].set_recent("in F.c0.m" + std::string(2000, '1'));
  }
  std::map<int64_t, size_t> bytes_of_second;
  for (absl::Duration now = absl::Seconds(100); now < absl::Seconds(105);
       now += absl::Milliseconds(20)) {
    v1::ActualState report = core_.Report(heartbeats);
    core_.SpaceTexts(now, &report);
    for (const v1::ActualJob& job : report.jobs()) {
      for (const ActualRank& rank : job.ranks()) {
        bytes_of_second[now / absl::Seconds(1)] += rank.status().recent().size();
      }
    }
  }
  ASSERT_EQ(bytes_of_second.size(), 5u);
  for (const auto& [second, num_bytes] : bytes_of_second) {
    EXPECT_LE(num_bytes, static_cast<size_t>(AgentCore::kUnaskedBytesMax)) << second;
    EXPECT_GT(num_bytes, static_cast<size_t>(AgentCore::kUnaskedBytesMax) / 2) << second;
  }
}

TEST_F(AgentCoreTest, AProcessKeeperThatIsSilentForLongIsReportedWithAWarning) {
  Want(DesiredJob::PHASE_RUN, 1);
  Apply();
  core_.OnKeeperSilence(AgentCore::kKeeperSilenceMin - absl::Milliseconds(1));
  EXPECT_EQ(core_.Report({}).jobs(0).keeper_silent_seconds(), 0);
  EXPECT_EQ(core_.Report({}).jobs(0).warnings_size(), 0);
  core_.OnKeeperSilence(absl::Seconds(7));
  const v1::ActualJob silent = core_.Report({}).jobs(0);
  EXPECT_EQ(silent.keeper_silent_seconds(), 7);
  ASSERT_EQ(silent.warnings_size(), 1);
  EXPECT_THAT(silent.warnings(0), HasSubstr("process keeper does not answer"));
  core_.OnKeeperSilence(absl::Seconds(8));
  EXPECT_EQ(core_.Report({}).jobs(0).warnings(0), silent.warnings(0));
  core_.OnKeeperSilence(absl::ZeroDuration());
  EXPECT_EQ(core_.Report({}).jobs(0).warnings_size(), 0);
}

TEST_F(AgentCoreTest, SamplesOfGpusHaveTheirShareOfWhatIsSentUnasked) {
  Want(DesiredJob::PHASE_RUN, 1);
  Apply();
  std::map<int64_t, telemetry::v1::RankStatus> heartbeats;
  for (int64_t process = 1; process < 10; ++process) {
    heartbeats[process].set_recent(std::string(2000, '1'));
  }
  const auto num_text_bytes = [&] {
    size_t num_bytes = 0;
    const auto report = core_.Report(heartbeats);
    for (const ActualRank& rank : report.jobs(0).ranks()) {
      num_bytes += rank.status().recent().size();
    }
    return num_bytes;
  };
  EXPECT_GT(num_text_bytes(), AgentCore::kUnaskedBytesMax / 2);
  EXPECT_TRUE(core_.NextGpus(absl::Seconds(1)).empty());
  core_.OnGpus({telemetry::v1::GpuSample()});
  EXPECT_LE(num_text_bytes(), AgentCore::kUnaskedBytesMax / 2);
  EXPECT_EQ(core_.NextGpus(absl::Seconds(1)).size(), 1u);
}

TEST_F(AgentCoreTest, TheReportIntervalIsTheShortestHeartbeat) {
  EXPECT_EQ(core_.report_interval(), absl::Seconds(1));
  Want(DesiredJob::PHASE_RUN, 1)
      ->mutable_spec()
      ->mutable_fault()
      ->mutable_heartbeat_interval()
      ->set_nanos(250'000'000);
  Apply();
  EXPECT_EQ(core_.report_interval(), absl::Milliseconds(250));
}

// --- a driver of another version ------------------------------------------------------------

constexpr auto kNewPhase = static_cast<DesiredJob::Phase>(77);

TEST_F(AgentCoreTest, APhaseThatOnlyANewerDriverKnowsLeavesTheAttemptAsItIs) {
  Run();
  const int64_t applied = Report().applied_version();
  for (const auto phase : {kNewPhase, DesiredJob::PHASE_UNSPECIFIED}) {
    Want(phase, 1)->set_acked_step(7);
    EXPECT_THAT(Apply(), IsEmpty());
    EXPECT_EQ(Job().num_processes(), 3);
    EXPECT_EQ(Report().applied_version(), applied) << "what it does not know is not applied";
    ASSERT_EQ(Job().warnings_size(), 1);
    EXPECT_THAT(Job().warnings(0), HasSubstr("the driver wants phase "));
  }
  End(1, Killed(SIGKILL));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Settle(), ElementsAre("start host as 4")) << "it goes on in the phase before";
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), version_);
  EXPECT_EQ(Job().warnings_size(), 0);
}

TEST_F(AgentCoreTest, AnUnknownPhaseDoesNotPutOffTheEndOfAStop) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1);
  Apply();
  now_ += absl::Seconds(29);
  Want(kNewPhase, 1);
  Apply();
  Want(DesiredJob::PHASE_STOP, 1);
  Apply();
  now_ += absl::Seconds(1);
  EXPECT_THAT(Settle(), ElementsAre("kill 2", "kill 3"));
}

TEST_F(AgentCoreTest, ANewAttemptInAnUnknownPhaseWaitsBesideTheOneThatRuns) {
  Run();
  Want(kNewPhase, 2);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(Job().num_processes(), 3);
  Want(DesiredJob::PHASE_RUN, 2);
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
}

TEST_F(AgentCoreTest, AnAttemptThatStartsWhereOnlyANewerDriverKnowsWaits) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2)
      ->mutable_restore()
      ->set_source(static_cast<v1::RestorePoint::Source>(77));
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 1);
  ASSERT_EQ(Job().warnings_size(), 1);
  EXPECT_THAT(Job().warnings(0), HasSubstr("the driver wants restore point 77"));
}

TEST_F(AgentCoreTest, ANewJobInAnUnknownPhaseIsNotBegun) {
  Want(kNewPhase, 1);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Report().jobs_size(), 0);
  EXPECT_EQ(Report().applied_version(), 0);
}

}  // namespace
}  // namespace megascale::agent
