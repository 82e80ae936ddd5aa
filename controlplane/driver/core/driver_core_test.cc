#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/desired_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controlplane/driver/core/testing/test_core.h"
#include "runtime/job/data_digest.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(DriverCoreTest, JobWaitsForSlotsAndSaysWhichAreMissing) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  EXPECT_EQ(job().state(), control::JOB_STATE_PENDING);
  EXPECT_EQ(job().reason(), "WaitingForSlots");
  EXPECT_EQ(job().message(),
            "position 1 in the queue; needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; no "
            "node is connected");
  Do(Joined("n0", "a", 2));
  Do(Joined("n1", "a", 1));
  EXPECT_EQ(job().message(),
            "position 1 in the queue; needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 2 "
            "nodes offer 3 (n0 2, n1 1)");
  Do(Joined("n2", "a", 1));
  EXPECT_EQ(job().state(), control::JOB_STATE_STARTING);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n1", "n2"));
}

TEST_F(DriverCoreTest, RanksGoToNodesOfOneInstructionSet) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Event other = Joined("n0", "a", 2);
  other.mutable_node_joined()->mutable_hello()->set_instruction_set("avx512");
  Do(other);
  Do(Joined("n1", "a", 2));
  EXPECT_EQ(job().state(), control::JOB_STATE_PENDING);
  Do(Joined("n2", "a", 2));
  EXPECT_THAT(PlacedNodes(), ElementsAre("n1", "n1", "n2", "n2"));
}

Event JoinedWithNumerics(const std::string& node_id, const std::string& version) {
  Event event = Joined(node_id, "a", 2);
  event.mutable_node_joined()->mutable_hello()->set_numerics_version(version);
  return event;
}

TEST_F(DriverCoreTest, RanksOfAnAttemptGoToNodesOfOneNumericsVersion) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(JoinedWithNumerics("n0", "4"));
  Do(JoinedWithNumerics("n1", "3"));
  EXPECT_EQ(job().message(),
            "position 1 in the queue; needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node "
            "offers 2 (n0 2); machines of the numerics versions 3, 4 do not share a job: give "
            "enough machines one version");
  Do(JoinedWithNumerics("n2", "3"));
  EXPECT_THAT(PlacedNodes(), ElementsAre("n1", "n1", "n2", "n2"));
}

TEST_F(DriverCoreTest, AJobWhoseAgentsAreUpgradedGoesOnWithMachinesOfOneNumericsVersion) {
  Do(JoinedWithNumerics("n0", "3"));
  Do(JoinedWithNumerics("n1", "3"));
  Do(Submitted("j", SpecOf(2, 2, 30)));
  for (const std::string id : {"n0", "n1"}) Do(Passed("j", 1, id));
  ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  Event upgraded = JoinedWithNumerics("n0", "4");
  upgraded.mutable_node_joined()->mutable_hello()->set_incarnation("b");
  Do(Lost("n0", "a"));
  Do(upgraded);
  for (const std::string id : {"n0", "n1"}) Do(Fenced(1, id, {}));
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 1) << "n0 and n1 compute other bits";
  EXPECT_THAT(job().message(), HasSubstr("the numerics versions 3, 4 do not share a job"));
  upgraded = JoinedWithNumerics("n1", "4");
  upgraded.mutable_node_joined()->mutable_hello()->set_incarnation("b");
  Do(Lost("n1", "a"));
  Do(upgraded);
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().attempt(), 2) << job().message();
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n1", "n1"));
}

TEST_F(DriverCoreTest, ARecoveringJobStaysOnItsMachinesThoughOthersAreOfAnotherNumericsVersion) {
  for (const std::string id : {"n2", "n3"}) Do(JoinedWithNumerics(id, "3"));
  Do(Submitted("j", SpecOf(2, 2, 30)));
  for (const std::string id : {"n2", "n3"}) Do(Passed("j", 1, id));
  for (const std::string id : {"n0", "n1"}) Do(JoinedWithNumerics(id, "4"));
  Do(Failed(1, 0, "n2", megascale::telemetry::v1::FAILURE_CLASS_EXITED));
  for (const std::string id : {"n2", "n3"}) Do(Fenced(1, id, {}));
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n2", "n2", "n3", "n3"));
}

TEST_F(DriverCoreTest, OlderRulesLookAtNoNumericsVersion) {
  Event older;
  older.mutable_driver_started()->set_rules(8);
  Do(older);
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(JoinedWithNumerics("n0", "3"));
  Do(JoinedWithNumerics("n1", "4"));
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n1", "n1"));
}

TEST_F(DriverCoreTest, AnAgentThatDoesNotTellItsNumericsVersionSharesJobsWithAll) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(Joined("n0", "a", 2));
  Do(JoinedWithNumerics("n1", "3"));
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n1", "n1"));
}

TEST_F(DriverCoreTest, TensorParallelPeersShareANode) {
  auto spec = SpecOf(2, 1, 30);
  spec.mutable_parallel()->set_tensor_model_parallel_size(2);
  Do(Submitted("j", spec));
  Do(Joined("n0", "a", 3));
  Do(Joined("n1", "a", 1));
  EXPECT_EQ(job().message(),
            "position 1 in the queue; needs data × tensor × pipeline = 2 × 2 × 1 = 4 slots in "
            "groups of 2 on one node; 2 nodes offer 4 "
            "(n0 3, n1 1)");
  Do(Joined("n2", "a", 2));
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n2", "n2"));
}

TEST_F(DriverCoreTest, LaterJobDoesNotOvertakeAnEarlierOne) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  Do(Joined("n0", "a", 2));
  EXPECT_EQ(FindJob(state_, "k")->reason(), "WaitingInQueue");
  EXPECT_EQ(FindJob(state_, "k")->message(), "position 2 in the queue, behind job j; needs 1 slot");
  Do(Joined("n1", "a", 2));
  EXPECT_EQ(job().state(), control::JOB_STATE_STARTING);
  EXPECT_EQ(FindJob(state_, "k")->reason(), "WaitingForSlots");
  Do(Joined("n2", "a", 1));
  EXPECT_EQ(FindJob(state_, "k")->state(), control::JOB_STATE_STARTING);
}

TEST_F(DriverCoreTest, PreflightThenRunThenTraining) {
  SubmitAndJoin();
  EXPECT_EQ(job().reason(), "Preflight");
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_PREFLIGHT);
  Do(Passed("j", 1, "n0"));
  EXPECT_FALSE(Do(Passed("j", 1, "n0")));
  EXPECT_EQ(job().stage(), pb::STAGE_PREFLIGHT);
  Do(Passed("j", 1, "n1"));
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_RUN);
  EXPECT_EQ(Desired("n0").restore().source(), agent::RestorePoint::SOURCE_INITIAL);
  EXPECT_THAT(Desired("n0").secret(), SizeIs(64));
  EXPECT_EQ(Desired("n0").checkpoint_directory(), "/state/jobs/j/checkpoints");
  EXPECT_TRUE(Desired("n0").delete_checkpoints());
  EXPECT_FALSE(Desired("n1").delete_checkpoints());
  Do(Started(1));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  Do(Progressed(1, 1));
  EXPECT_NE(job().started_unix_nanos(), 0);
}

TEST_F(DriverCoreTest, RefusedPreflightFailsTheJobWithItsMessage) {
  SubmitAndJoin();
  Event event;
  event.mutable_preflight_refused()->set_job_id("j");
  event.mutable_preflight_refused()->set_attempt(1);
  event.mutable_preflight_refused()->set_node_id("n1");
  event.mutable_preflight_refused()->set_message("data.files: /x: no such file");
  Do(event);
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "Refused");
  EXPECT_EQ(job().message(), "data.files: /x: no such file");
  EXPECT_EQ(job().culprit().failure_class(), telemetry::FAILURE_CLASS_REFUSED);
  EXPECT_EQ(DesiredFor(state_, "n0").jobs_size(), 0);
}

TEST_F(DriverCoreTest, DifferentTextOnTwoNodesIsRefused) {
  SubmitAndJoin();
  Event first = Passed("j", 1, "n0");
  first.mutable_preflight_passed()->mutable_preflight()->mutable_data()->set_total_bytes(7);
  Do(first);
  Do(Passed("j", 1, "n1"));
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_THAT(job().message(), HasSubstr("the text on node n1 differs from that on node n0"));
}

// n0 has an older version: its report has the list, and it must get it.
TEST_F(DriverCoreTest, AgentsAreToldADigestOfTheDataAndOlderOnesTheList) {
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  Do(started);
  Do(Submitted("j", SpecOf(2, 1, 30)));
  Do(Joined("n0", "a", 1));
  Event joined = Joined("n1", "a", 1);
  joined.mutable_node_joined()->mutable_hello()->set_data_digests(true);
  Do(joined);
  Event passed = Passed("j", 1, "n1");
  auto* data = passed.mutable_preflight_passed()->mutable_preflight()->mutable_data();
  for (const char* sha256 : {"a", "b"}) data->add_file_sha256(sha256);
  const auto list = *data;
  *data = job::DigestOf(list);
  Do(passed);
  passed.mutable_preflight_passed()->set_node_id("n0");
  *data = list;
  Do(passed);
  ASSERT_EQ(job().stage(), pb::STAGE_RUN) << job().message();
  EXPECT_EQ(Desired("n0").data().SerializeAsString(), list.SerializeAsString());
  EXPECT_EQ(Desired("n1").data().SerializeAsString(), job::DigestOf(list).SerializeAsString());
  EXPECT_EQ(job().data().file_sha256_size(), 2) << "for agents of older versions";
  for (const auto& preflight : job().preflights()) {
    EXPECT_EQ(preflight.preflight().data().file_sha256_size(), 0);
  }
  state_.mutable_jobs(0)->mutable_data()->clear_file_sha256();
  EXPECT_FALSE(Desired("n0").has_data()) << "its preflight finds the list";
}

TEST_F(DriverCoreTest, FromACheckpointThatHasAllStepsIsRefused) {
  Event submitted = Submitted("j", SpecOf(1, 1, 30));
  submitted.mutable_job_submitted()->set_from_checkpoint("/old");
  Do(submitted);
  Do(Joined("n0", "a", 2));
  Event passed = Passed("j", 1, "n0");
  passed.mutable_preflight_passed()->mutable_preflight()->set_first_step(30);
  Do(passed);
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().message(), "train.steps: 30 is not more than the 30 steps of /old");
}

TEST_F(DriverCoreTest, FromACheckpointStartsAtItsStep) {
  Event submitted = Submitted("j", SpecOf(1, 1, 30));
  submitted.mutable_job_submitted()->set_from_checkpoint("/old");
  Do(submitted);
  Do(Joined("n0", "a", 2));
  Event passed = Passed("j", 1, "n0");
  passed.mutable_preflight_passed()->mutable_preflight()->set_first_step(20);
  Do(passed);
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_STORAGE);
  EXPECT_EQ(job().restore().step(), 20);
  EXPECT_EQ(job().restore().directory(), "/old");
}

TEST_F(DriverCoreTest, SucceedsOnceAllRanksEndedAndTheLastCheckpointIsCommitted) {
  Run();
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  EXPECT_EQ(job().reason(), "FinalCheckpoint");
  Do(Stored(1, 30));
  EXPECT_THAT(Desired("n0").finalize(), SizeIs(1));
  EXPECT_THAT(Desired("n1").finalize(), SizeIs(0));
  EXPECT_FALSE(Do(RetentionEnded(1, 30)));
  Do(Manifest(1, 30));
  Do(RetentionEnded(1, 30));
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
  EXPECT_NE(job().ended_unix_nanos(), 0);
  EXPECT_FALSE(Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_EXITED)));
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
}

TEST_F(DriverCoreTest, KeepsTheLastCheckpoints) {
  Run();
  for (int64_t step : {10, 20, 29}) Do(Manifest(1, step));
  EXPECT_FALSE(Do(Manifest(1, 29)));
  ASSERT_EQ(Desired("n1").committed_size(), 2);
  EXPECT_EQ(Desired("n1").committed(0).step(), 20);
  EXPECT_EQ(Desired("n1").committed(1).step(), 29);
}

TEST_F(DriverCoreTest, HostLivesUntilOlderCheckpointsAreDeleted) {
  Run();
  for (int64_t step : {10, 20, 30}) Do(Manifest(1, step));
  EXPECT_FALSE(Do(RetentionEnded(1, 30)));  // ranks still run
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  EXPECT_EQ(job().reason(), "Retention");
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_RUN);
  EXPECT_EQ(Desired("n0").committed_size(), 2);
  EXPECT_FALSE(Do(RetentionEnded(1, 20)));
  EXPECT_EQ(job().stage(), pb::STAGE_RUN);
  EXPECT_TRUE(Do(RetentionEnded(1, 30)));
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
  EXPECT_FALSE(Do(RetentionEnded(1, 30)));
}

TEST_F(DriverCoreTest, RetentionThatIsNeverReportedDoesNotHoldTheEndUp) {
  Run();
  Do(Manifest(1, 30));
  EXPECT_THAT(TimersFor(state_), SizeIs(0));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_THAT(timers, SizeIs(1));
  EXPECT_EQ(timers[0].delay, absl::Seconds(30));
  EXPECT_TRUE(Do(timers[0].when_due));
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
}

TEST_F(DriverCoreTest, LossOfTheDeletingNodeEndsTheWaitForRetention) {
  Run();
  Do(Manifest(1, 30));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  Do(Joined("n0", "b", 2));
  EXPECT_FALSE(Do(RetentionEnded(1, 30)));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
}

TEST_F(DriverCoreTest, ALastCheckpointThatIsNeverStoredIsLeftToAnotherAttempt) {
  Run();
  Do(Progressed(1, 30));
  EXPECT_THAT(TimersFor(state_), SizeIs(0));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  ASSERT_EQ(job().reason(), "FinalCheckpoint");
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_THAT(timers, SizeIs(1));
  EXPECT_EQ(timers[0].delay, absl::Minutes(10));
  EXPECT_TRUE(Do(timers[0].when_due));
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  EXPECT_THAT(job().message(), HasSubstr("the checkpoint of the last step, 30, did not reach"));
  EXPECT_THAT(job().message(), HasSubstr("/state/jobs/j/checkpoints"));
  Do(Fenced(1, "n0", {{0, 30}, {1, 30}}));
  Do(Fenced(1, "n1", {{2, 30}, {3, 30}}));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_MEMORY);
  EXPECT_EQ(job().restore().step(), 30);
  EXPECT_FALSE(Do(timers[0].when_due));  // of the attempt before
  // Storage stays broken, so the limit on restarts ends the job.
  for (int64_t attempt = 2; !IsTerminal(job()) && attempt < 10; ++attempt) {
    for (int rank = 0; rank < 4; ++rank) Do(Ended(attempt, rank, false, 30));
    Do(TimersFor(state_).at(0).when_due);
    Do(Fenced(attempt, "n0", {{0, 30}, {1, 30}}));
    Do(Fenced(attempt, "n1", {{2, 30}, {3, 30}}));
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_THAT(job().message(), HasSubstr("did not reach storage in time"));
}

TEST_F(DriverCoreTest, ACommitInTimeEndsTheWaitForTheLastCheckpoint) {
  Run();
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  const Event too_late = TimersFor(state_).at(0).when_due;
  Do(Manifest(1, 30));
  EXPECT_FALSE(Do(too_late));
  EXPECT_EQ(job().reason(), "Retention");
}

TEST_F(DriverCoreTest, AJobOfAnAgentThatCannotEndItsProcessesWaitsForAnother) {
  Run();
  Do(Progressed(1, 15));
  Do(Failed(1, 1, "n0", telemetry::FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n0", {}));
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_THAT(timers, SizeIs(1));
  EXPECT_EQ(timers[0].delay, absl::Minutes(5));
  seconds_ += 300;
  EXPECT_TRUE(Do(timers[0].when_due));
  EXPECT_EQ(job().stage(), pb::STAGE_WAIT_FOR_SLOTS);
  EXPECT_THAT(job().message(), HasSubstr("n1 is quarantined"));
  EXPECT_EQ(job().culprit().rank(), 1);
  EXPECT_EQ(DesiredFor(state_, "n1").jobs_size(), 0);
}

TEST_F(DriverCoreTest, AnAgentThatIsBackAndCannotEndItsProcessesIsQuarantinedToo) {
  Run();
  Do(Lost("n0", "a"));
  Do(Fenced(1, "n1", {}));
  BackoffElapsed(1);
  EXPECT_EQ(job().stage(), pb::STAGE_WAIT_FOR_SLOTS);
  EXPECT_THAT(TimersFor(state_), SizeIs(0));  // may wait for nodes as long as it takes
  Do(Joined("n0", "a", 2));
  ASSERT_THAT(TimersFor(state_), SizeIs(1));
  seconds_ += 300;
  Do(TimersFor(state_)[0].when_due);
  EXPECT_EQ(job().stage(), pb::STAGE_WAIT_FOR_SLOTS);
  EXPECT_TRUE(FindNode(state_, "n0")->has_quarantine());
}

TEST_F(DriverCoreTest, ACancelledJobOfAnAgentThatCannotEndItsProcessesIsCancelled) {
  Run();
  Do(Manifest(1, 10));
  Do(Cancelled(false));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 12));
  Do(RetentionEnded(1, 10));
  Do(Fenced(1, "n1", {}));
  seconds_ += 300;
  Do(TimersFor(state_).at(0).when_due);
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_THAT(job().message(), HasSubstr("newest checkpoint: step 10"));
  EXPECT_THAT(job().message(), HasSubstr("n0 could not end its processes"));
}

TEST_F(DriverCoreTest, FailureFencesAllNodesThenStartsTheNextAttemptFromMemory) {
  Run();
  Do(Progressed(1, 15));
  Do(Manifest(1, 10));
  Do(Failed(1, 1, "n0", telemetry::FAILURE_CLASS_EXITED));
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  EXPECT_EQ(job().reason(), "RankExited");
  EXPECT_EQ(job().message(), "rank 1 on n0: evidence of rank 1");
  EXPECT_EQ(Desired("n1").phase(), agent::DesiredJob::PHASE_HOLD);
  Do(Fenced(1, "n0", {{0, 10}, {0, 12}, {1, 10}, {1, 12}}));
  EXPECT_EQ(job().attempt(), 1);
  Do(Fenced(1, "n1", {{2, 12}, {2, 14}, {3, 12}}));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_MEMORY);
  EXPECT_EQ(job().restore().step(), 12);
  EXPECT_EQ(Desired("n1").phase(), agent::DesiredJob::PHASE_RUN);
  EXPECT_EQ(Desired("n1").attempt(), 2);
  EXPECT_EQ(job().culprit().rank(), 1);
  const std::vector<LossLogCut> cuts = LossLogCutsFor(state_);
  ASSERT_THAT(cuts, SizeIs(1));
  EXPECT_EQ(cuts[0].restore_step, 12);
  EXPECT_EQ(cuts[0].attempt, 2);
}

TEST_F(DriverCoreTest, IncompleteSnapshotsGiveWayToTheCommittedCheckpoint) {
  Run();
  Do(Progressed(1, 15));
  Do(Failed(1, 1, "n0", telemetry::FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n0", {{0, 12}}));
  // Complete checkpoints that are reported while the attempt is fenced count.
  Do(Manifest(1, 10));
  Do(Fenced(1, "n1", {{2, 12}, {3, 12}}));
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_STORAGE);
  EXPECT_EQ(job().restore().step(), 10);
  EXPECT_EQ(job().restore().directory(), "/c/step-10-attempt-1");
  // Checkpoints of the attempt that was given up no longer count.
  EXPECT_FALSE(Do(Manifest(1, 14)));
  EXPECT_FALSE(Do(Stored(1, 14)));
  EXPECT_FALSE(Do(Fenced(1, "n1", {})));
  EXPECT_FALSE(Do(Progressed(1, 20)));
  EXPECT_EQ(job().committed_size(), 1);
}

TEST_F(DriverCoreTest, SnapshotsOfStepsThatWereRolledBackDoNotCount) {
  Run();
  Do(Progressed(1, 15));
  Do(Manifest(1, 10));
  KillRank(1);
  ASSERT_EQ(job().restore().step(), 10);
  Do(Failed(2, 0, "n0", telemetry::FAILURE_CLASS_EXITED));
  // A partitioned node comes back with its snapshots of attempt 1.
  for (const char* node : {"n0", "n1"}) {
    Event fenced = Fenced(1, node, {{0, 14}, {1, 14}, {2, 14}, {3, 14}});
    fenced.mutable_node_fenced()->set_attempt(2);
    Do(fenced);
  }
  BackoffElapsed(2);
  EXPECT_EQ(job().attempt(), 3);
  EXPECT_EQ(job().restore().step(), 10);
}

TEST_F(DriverCoreTest, DeathThatFollowedFromAnotherIsNeverTheCulprit) {
  Run();
  Do(Failed(1, 2, "n1", telemetry::FAILURE_CLASS_ABORTED));
  EXPECT_EQ(job().culprit().rank(), 2);
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_OUT_OF_MEMORY));
  Do(Failed(1, 1, "n0", telemetry::FAILURE_CLASS_EXITED));
  EXPECT_EQ(job().culprit().rank(), 0);
  EXPECT_EQ(job().reason(), "OutOfMemory");
}

TEST_F(DriverCoreTest, ADeathToldWithTheFenceOfItsNodeIsTheCulprit) {
  Run();
  Do(Progressed(1, 15));
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_ABORTED));
  EXPECT_EQ(job().reason(), "PeerLost");
  Do(Fenced(1, "n0", {}));
  EXPECT_TRUE(Do(Failed(1, 2, "n1", telemetry::FAILURE_CLASS_EXITED)));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().culprit().rank(), 2);
  EXPECT_EQ(job().culprit().attempt(), 1);
  // No longer, because the next attempt runs.
  EXPECT_FALSE(Do(Failed(1, 3, "n1", telemetry::FAILURE_CLASS_EXITED)));
}

TEST_F(DriverCoreTest, LostNodeIsWaitedForAndTakenBackWithItsRanks) {
  Run();
  Do(Progressed(1, 15));
  Do(Manifest(1, 10));
  Do(Lost("n0", "a"));
  EXPECT_EQ(job().reason(), "NodeLost");
  EXPECT_EQ(job().culprit().failure_class(), telemetry::FAILURE_CLASS_UNREACHABLE);
  Do(Fenced(1, "n1", {{2, 12}, {3, 12}}));
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  EXPECT_EQ(job().reason(), "WaitingForSlots");
  EXPECT_EQ(job().message(),
            "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node offers 2 (n1 2)");
  Do(Joined("n0", "b", 2));
  // The new agent is told to hold, and confirms before anything is started there.
  EXPECT_EQ(job().attempt(), 1);
  Do(Fenced(1, "n0", {}));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n1", "n1"));
  EXPECT_EQ(job().restore().step(), 10);
}

TEST_F(DriverCoreTest, SpareNodeTakesTheRanksOfALostOne) {
  Run();
  Do(Joined("n2", "a", 2));
  Do(Lost("n0", "a"));
  Do(Fenced(1, "n1", {{2, 12}, {3, 12}}));
  BackoffElapsed(1);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n2", "n2", "n1", "n1"));
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_INITIAL);
  EXPECT_EQ(DesiredFor(state_, "n0").jobs_size(), 0);
}

TEST_F(DriverCoreTest, RestartedAgentIsALossOfItsProcesses) {
  Run();
  Do(Joined("n0", "b", 2));
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  EXPECT_THAT(job().message(), HasSubstr("its agent was restarted"));
  // A message of the incarnation before changes nothing.
  EXPECT_FALSE(Do(Lost("n0", "a")));
}

TEST_F(DriverCoreTest, FenceOfAnAgentThatRestartsMeanwhileIsForgotten) {
  Run();
  Do(Failed(1, 3, "n1", telemetry::FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n0", {{0, 12}, {1, 12}}));
  Do(Joined("n0", "b", 2));
  Do(Fenced(1, "n1", {{2, 12}, {3, 12}}));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  Do(Fenced(1, "n0", {}));
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_INITIAL);
}

TEST_F(DriverCoreTest, AttemptsWithoutProgressBackOffAndThenFailTheJob) {
  Run();
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    KillRank(attempt);
    const std::vector<Timer> timers = TimersFor(state_);
    ASSERT_THAT(timers, SizeIs(1));
    EXPECT_EQ(timers[0].delay, absl::Seconds(1 << (attempt - 1)));
    Do(timers[0].when_due);
    EXPECT_EQ(job().attempt(), attempt + 1);
    EXPECT_THAT(TimersFor(state_), SizeIs(0));
  }
  KillRank(4);
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "RankExited");
  EXPECT_THAT(job().message(), HasSubstr("gave up after 4 attempts in a row without progress"));
  EXPECT_THAT(job().message(), HasSubstr("evidence of rank 0"));
}

TEST_F(DriverCoreTest, OnlyStepsBeyondTheBestOneAreProgress) {
  Run();
  Do(Progressed(1, 15));
  KillRank(1);
  EXPECT_EQ(job().attempt(), 2);  // no backoff after progress
  EXPECT_FALSE(Do(Progressed(2, 15)));
  KillRank(2);
  EXPECT_EQ(job().stage(), pb::STAGE_BACKOFF);
  BackoffElapsed(2);
  EXPECT_TRUE(Do(Progressed(3, 16)));
  KillRank(3);
  EXPECT_EQ(job().attempt(), 4);
}

TEST_F(DriverCoreTest, DivergedAndRefusedAreNotTriedAgain) {
  Run();
  Do(Progressed(1, 15));
  Do(Failed(1, 2, "n1", telemetry::FAILURE_CLASS_DIVERGED));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "Diverged");
}

TEST_F(DriverCoreTest, ACorruptSnapshotInMemoryIsSteppedOver) {
  Run();
  Do(Progressed(1, 15));
  Do(Manifest(1, 10));
  Do(Failed(1, 1, "n0", telemetry::FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n0", {{0, 12}, {1, 12}}));
  Do(Fenced(1, "n1", {{2, 12}, {3, 12}}));
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_MEMORY);
  Do(FailedToRead(2, 1, "n0"));
  Do(Fenced(2, "n0", {{0, 12}, {1, 12}}));
  Do(Fenced(2, "n1", {{2, 12}, {3, 12}}));
  BackoffElapsed(2);
  EXPECT_EQ(job().attempt(), 3);
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_STORAGE);
  EXPECT_EQ(job().restore().step(), 10);
}

TEST_F(DriverCoreTest, LossAfterTheLastCheckpointIsASuccess) {
  Run();
  for (int rank = 0; rank < 3; ++rank) Do(Ended(1, rank, false, 30));
  Do(Manifest(1, 30));
  Do(Lost("n1", "a"));
  Do(Fenced(1, "n0", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
}

TEST_F(DriverCoreTest, PendingJobIsCancelledAtOnce) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(Cancelled(true));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_FALSE(Do(Cancelled(true)));
  EXPECT_FALSE(*IsNewCancel(state_, "j"));
}

TEST_F(DriverCoreTest, CancelStopsThenFencesThenIsCancelled) {
  Run();
  EXPECT_TRUE(*IsNewCancel(state_, "j"));
  Do(Cancelled(false));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLING);
  EXPECT_FALSE(*IsNewCancel(state_, "j"));
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_STOP);
  EXPECT_EQ(Desired("n0").stop_grace().seconds(), 30);
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 7));
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_HOLD);
  Do(Fenced(1, "n0", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLING);
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
}

TEST_F(DriverCoreTest, CancelWithCheckpointWaitsForItsCommit) {
  Run();
  Do(Cancelled(true));
  EXPECT_TRUE(Desired("n0").stop_with_checkpoint());
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 7));
  EXPECT_EQ(job().stage(), pb::STAGE_STOP);
  EXPECT_EQ(job().reason(), "FinalCheckpoint");
  Do(Stored(1, 7));
  EXPECT_THAT(Desired("n0").finalize(), SizeIs(1));
  Do(Manifest(1, 7));
  EXPECT_EQ(job().reason(), "Retention");
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_STOP);
  Do(RetentionEnded(1, 7));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_EQ(job().message(), "cancelled; newest checkpoint: step 7 in /c/step-7-attempt-1");
}

// Otherwise it would keep more checkpoints than checkpoint.keep.
TEST_F(DriverCoreTest, CancelWithoutCheckpointWaitsForRetentionToo) {
  Run();
  for (int64_t step : {10, 20, 29}) Do(Manifest(1, step));
  Do(Stored(1, 30));
  Do(Cancelled(false));
  for (int rank = 0; rank < 3; ++rank) Do(Ended(1, rank, true, 30));
  Do(Failed(1, 3, "n1", telemetry::FAILURE_CLASS_EXITED));  // it did not stop in time
  EXPECT_EQ(job().reason(), "Retention");
  EXPECT_FALSE(Do(RetentionEnded(1, 29))) << "the manifest of step 30 is being written";
  Do(Manifest(1, 30));
  EXPECT_FALSE(Do(RetentionEnded(1, 29)));
  EXPECT_TRUE(Do(RetentionEnded(1, 30)));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  for (const char* node : {"n0", "n1"}) Do(Fenced(1, node, {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
}

TEST_F(DriverCoreTest, CancelByOlderRulesDoesNotWaitForRetention) {
  Event started;
  started.mutable_driver_started()->set_rules(9);
  Do(started);
  Run();
  Do(Manifest(1, 10));
  Do(Cancelled(false));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 12));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
}

TEST_F(DriverCoreTest, CancelDoesNotWaitForEver) {
  Run();
  Do(Cancelled(true));
  for (int rank = 0; rank < 3; ++rank) Do(Ended(1, rank, true, 7));
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_THAT(timers, SizeIs(1));
  Do(timers[0].when_due);
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  Do(Lost("n0", "a"));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
}

TEST_F(DriverCoreTest, CancelledCheckpointIsGivenUpWhenAHostFailed) {
  Run();
  Do(Cancelled(true));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 7));
  EXPECT_EQ(job().stage(), pb::STAGE_STOP);
  Do(Failed(1, -1, "n0", telemetry::FAILURE_CLASS_EXITED));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
}

TEST_F(DriverCoreTest, CancelDoesNotWaitForRetentionWithoutItsNode) {
  for (const bool lost : {false, true}) {
    state_.Clear();
    events_.clear();
    states_.clear();
    Run();
    Do(Cancelled(true));
    for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 7));
    Do(Manifest(1, 7));
    const std::vector<Timer> timers = TimersFor(state_);
    ASSERT_THAT(timers, SizeIs(1));
    EXPECT_TRUE(timers[0].when_due.retention_ended().timed_out());
    Do(lost ? Lost("n0", "a") : Fenced(1, "n0", {}));
    EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  }
}

TEST_F(DriverCoreTest, CancelWhileRecoveringEndsOnceFenced) {
  Run();
  Do(Lost("n0", "a"));
  Do(Cancelled(false));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLING);
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
}

TEST_F(DriverCoreTest, SubmitIsIdempotentByIdAndSpecification) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  auto again = Submitted("j", SpecOf(2, 2, 30)).job_submitted();
  again.set_secret_seed("another seed");
  EXPECT_FALSE(*IsNewSubmit(state_, again));
  const auto other = Submitted("j", SpecOf(2, 2, 31)).job_submitted();
  EXPECT_EQ(IsNewSubmit(state_, other).status().code(), absl::StatusCode::kAlreadyExists);
  again.add_allow_changed("data");
  EXPECT_EQ(IsNewSubmit(state_, again).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(*IsNewSubmit(state_, Submitted("k", SpecOf(2, 2, 30)).job_submitted()));
}

// The submit was taken by a version whose default differed.
TEST_F(DriverCoreTest, SubmitCanBeRepeatedAfterAnUpgradeThatChangedADefault) {
  auto older = SpecOf(2, 2, 30);
  older.mutable_parallel()->set_tp_comm_overlap(true);
  auto now = older;
  now.mutable_parallel()->set_tp_comm_overlap(false);
  Do(Submitted("j", older));
  EXPECT_FALSE(*IsNewSubmit(state_, Submitted("j", now).job_submitted()));
  now.mutable_train()->set_steps(31);
  EXPECT_EQ(IsNewSubmit(state_, Submitted("j", now).job_submitted()).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(DriverCoreTest, CancelOfWhatEndedOtherwiseOrIsNotThereIsRefused) {
  EXPECT_EQ(IsNewCancel(state_, "j").status().code(), absl::StatusCode::kNotFound);
  Run();
  Do(Failed(1, 2, "n1", telemetry::FAILURE_CLASS_REFUSED));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(IsNewCancel(state_, "j").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DriverCoreTest, SlotsOfOtherJobsAreTaken) {
  Run();
  Do(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_EQ(FindJob(state_, "k")->message(),
            "position 1 in the queue; needs 1 slot; 2 nodes offer 0 (n0 0, n1 0)");
  Do(Cancelled(false));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(FindJob(state_, "k")->state(), control::JOB_STATE_STARTING);
}

}  // namespace
}  // namespace megascale::driver
