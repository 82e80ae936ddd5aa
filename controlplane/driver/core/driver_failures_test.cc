// Tests which failure of an attempt is the cause, which are its consequences, and when a job gives
// up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/account/time_account.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/recovery.h"
#include "controlplane/driver/core/testing/test_core.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class DriverFailuresTest : public DriverCoreTest {
 protected:
  // Makes a rank fail, noticed at `second`. Ranks 0 and 1 are on n0, ranks 2 and 3 on n1.
  void FailAt(int64_t attempt, int rank, int64_t second,
              telemetry::FailureClass failure_class = telemetry::FAILURE_CLASS_EXITED) {
    Event event = Failed(attempt, rank, rank < 2 ? "n0" : "n1", failure_class);
    event.mutable_rank_failed()->mutable_noticed_at()->set_seconds(second);
    Do(event);
  }
  std::vector<int> RanksOfFailures() const {
    std::vector<int> ranks;
    for (const auto& failure : job().failures()) ranks.push_back(failure.culprit().rank());
    return ranks;
  }
};

TEST_F(DriverFailuresTest, TheFirstByTimeIsTheCauseWhoeverSaidItFirst) {
  Run();
  FailAt(1, 0, 100);
  EXPECT_EQ(job().message(), "rank 0 on n0: evidence of rank 0");
  FailAt(1, 3, 102);
  FailAt(1, 2, 99);
  FailAt(1, 1, 101);
  EXPECT_EQ(job().culprit().rank(), 2);
  EXPECT_EQ(job().message(), "rank 2 on n1: evidence of rank 2");
  EXPECT_THAT(RanksOfFailures(), ElementsAre(2, 0, 1, 3));
  EXPECT_EQ(job().num_failures(), 4);
}

TEST_F(DriverFailuresTest, ADeathThatFollowedFromAPeersIsNoCauseHoweverEarly) {
  Run();
  FailAt(1, 0, 90, telemetry::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(job().reason(), "PeerLost");
  Event lost = Lost("n1", "a");
  lost.mutable_node_lost()->mutable_noticed_at()->set_seconds(95);
  Do(lost);
  EXPECT_EQ(job().reason(), "NodeLost");
  FailAt(1, 1, 80, telemetry::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(job().reason(), "NodeLost");
  EXPECT_THAT(RanksOfFailures(), ElementsAre(-1, 1, 0));
}

// It drains, say, while the other node still ends its processes.
TEST_F(DriverFailuresTest, AMachineThatGoesAfterTheAttemptHadEndedThereIsNoCause) {
  Run();
  FailAt(1, 0, 90, telemetry::FAILURE_CLASS_ABORTED);
  Do(Fenced(1, "n1", {}));
  Do(Joined("n1", "its next incarnation", 2));
  EXPECT_EQ(job().reason(), "PeerLost");
  EXPECT_THAT(RanksOfFailures(), ElementsAre(0));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().stage(), pb::STAGE_BACKOFF);
  EXPECT_EQ(job().culprit().node_id(), "n0");
}

// A worker stalls, then its agent ends: peers that were connecting to it see a hang-up before the
// driver knows.
TEST_F(DriverFailuresTest, AnAgentThatEndsIsTheCauseAndTheHangUpsOfPeersFollow) {
  Run();
  Do(Progressed(1, 7));
  FailAt(1, 0, 90, telemetry::FAILURE_CLASS_ABORTED);
  FailAt(1, 1, 91, telemetry::FAILURE_CLASS_ABORTED);
  Do(Fenced(1, "n0", {}));
  Do(Joined("n1", "its next incarnation", 2));
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  EXPECT_EQ(job().reason(), "NodeLost");
  EXPECT_EQ(job().culprit().node_id(), "n1");
  EXPECT_THAT(RanksOfFailures(), ElementsAre(-1, 0, 1));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().attempt_reason(), "NodeLost");
}

TEST_F(DriverFailuresTest, HangUpsAreTriedAgainWithinTheBudgetAndThenShown) {
  Run();
  for (int64_t attempt = 1; attempt <= 4; ++attempt) {
    ASSERT_EQ(job().attempt(), attempt) << "a hang-up alone ends no job";
    FailAt(attempt, 0, 10 * attempt, telemetry::FAILURE_CLASS_ABORTED);
    for (const char* node_id : {"n0", "n1"}) Do(Fenced(attempt, node_id, {}));
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().message(),
            "gave up after 4 attempts in a row without progress; the last: rank 0 on n0: evidence "
            "of rank 0");
}

TEST_F(DriverFailuresTest, WithoutATimeTheOneThatIsKnownStays) {
  Run();
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_EXITED));
  FailAt(1, 1, 5);
  EXPECT_EQ(job().culprit().rank(), 0);
}

TEST_F(DriverFailuresTest, OnlyTheCauseKeepsItsLogLinesAndFewConsequencesAreKept) {
  JobRecord record;
  for (int rank = 0; rank < 100; ++rank) {
    pb::Failure failure;
    failure.mutable_culprit()->set_rank(rank);
    failure.mutable_culprit()->set_evidence(absl::StrCat("line ", rank, "\nits last lines:\nx"));
    failure.mutable_noticed_at()->set_seconds(1000 - rank);
    AddFailure(failure, rank == 0 || rank == 50, &record);
  }
  EXPECT_THAT(record.failures(), SizeIs(kFailuresMax));
  EXPECT_EQ(record.num_failures(), 100);
  EXPECT_EQ(record.failures(0).culprit().evidence(), "line 50\nits last lines:\nx");
  EXPECT_EQ(record.failures(1).culprit().evidence(), "line 99");
  EXPECT_EQ(record.failures(2).culprit().rank(), 98);
}

TEST_F(DriverFailuresTest, ACrashAtTheSameStepEveryTimeEndsTheJobWithItsCause) {
  Run();
  Do(Progressed(1, 7));
  for (int64_t attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_EQ(job().attempt(), attempt);
    FailAt(attempt, 1, 100 * attempt + 1, telemetry::FAILURE_CLASS_ABORTED);
    FailAt(attempt, 2, 100 * attempt);
    for (const char* node_id : {"n0", "n1"}) Do(Fenced(attempt, node_id, {}));
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "RankExited");
  EXPECT_EQ(job().message(),
            "gave up after 4 attempts in a row without progress; the last: rank 2 on n1: evidence "
            "of rank 2");
  EXPECT_EQ(job().culprit().attempt(), 5);
  EXPECT_THAT(RanksOfFailures(), ElementsAre(2, 1));
}

TEST_F(DriverFailuresTest, TheNextAttemptsFailuresReplaceThoseBefore) {
  Run();
  FailAt(1, 0, 10);
  EXPECT_THAT(job().failures(), SizeIs(1));
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(1, node_id, {}));
  BackoffElapsed(1);
  FailAt(2, 3, 5);
  EXPECT_THAT(RanksOfFailures(), ElementsAre(3));
  EXPECT_EQ(job().num_failures(), 1);
}

// A checkpoint that cannot be read: it is read again, then on other machines, then older ones are;
// then the job ends.
class UnreadCheckpointTest : public DriverFailuresTest {
 protected:
  // Trains beyond these commits, of which the newest `keep` are kept; then rank 0 is killed, and no
  // snapshots are left in memory.
  void CommitAndKill(const std::vector<int64_t>& steps, int keep, const std::string& from = "") {
    Event submitted = Submitted("j", SpecOf(2, 2, 100));
    submitted.mutable_job_submitted()->mutable_spec()->mutable_checkpoint()->set_keep(keep);
    submitted.mutable_job_submitted()->set_from_checkpoint(from);
    Do(submitted);
    Do(Joined("n0", "a", 2));
    Do(Joined("n1", "a", 2));
    Do(Passed("j", 1, "n0"));
    Do(Passed("j", 1, "n1"));
    for (const int64_t step : steps) Do(Manifest(1, step));
    Do(Progressed(1, 59));
    KillRank(1);
  }
  // The job's newest attempt cannot read its checkpoint on n1.
  void FailToRead(int rank = 2, const std::string& node_id = "n1") {
    const int64_t attempt = job().attempt();
    Do(FailedToRead(attempt, rank, node_id));
    for (const char* node : {"n0", "n1", "n2"}) Do(Fenced(attempt, node, {}));
    BackoffElapsed(attempt);
    for (const char* node : {"n0", "n1"}) Do(Passed("j", job().attempt(), node));
  }
  std::vector<int64_t> CommittedSteps() const {
    std::vector<int64_t> steps;
    for (const auto& manifest : job().committed()) steps.push_back(manifest.step());
    return steps;
  }
  std::string MissingIn(const std::string& text, const std::vector<std::string>& parts) const {
    for (const std::string& part : parts) {
      if (text.find(part) == std::string::npos) return absl::StrCat(part, " is not in ", text);
    }
    return "";
  }
};

TEST_F(UnreadCheckpointTest, IsReadAgainBeforeAnOlderOneIsUsed) {
  CommitAndKill({10, 20}, 2);
  EXPECT_EQ(job().restore().step(), 20);
  FailToRead();
  EXPECT_EQ(job().attempt(), 3);
  EXPECT_EQ(job().restore().step(), 20);
  EXPECT_EQ(job().culprit().evidence(), "evidence of rank 2; it is read again");
  FailToRead();
  EXPECT_EQ(job().attempt(), 4);
  EXPECT_EQ(job().restore().step(), 10);
  EXPECT_EQ(job().culprit().evidence(),
            "evidence of rank 2; an older checkpoint is used: /c/step-10-attempt-1");
  // Its next commit replaces the unreadable checkpoints; until then no checkpoint that may be
  // needed is deleted.
  EXPECT_THAT(CommittedSteps(), ElementsAre(10));
  Do(Started(4));
  Do(Manifest(4, 15));
  EXPECT_THAT(CommittedSteps(), ElementsAre(10, 15));
  EXPECT_THAT(job().unread(), SizeIs(1));
  Do(Manifest(4, 20));
  EXPECT_THAT(job().unread(), SizeIs(0));
  EXPECT_THAT(CommittedSteps(), ElementsAre(15, 20));
}

TEST_F(UnreadCheckpointTest, IsReadOnAnotherMachineWhereThereIsRoom) {
  CommitAndKill({10, 20}, 2);
  Do(Joined("n2", "a", 2));
  FailToRead();
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n1", "n1")) << "the same is tried again";
  FailToRead();
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n2", "n2"));
  EXPECT_EQ(job().restore().step(), 20);
  EXPECT_EQ(job().culprit().evidence(),
            "evidence of rank 2; it is read again on other nodes than n1");
  Do(Passed("j", 4, "n2"));
  Do(Started(4));
  EXPECT_TRUE(FindNode(state_, "n1")->has_quarantine()) << "not the checkpoint, the machine";
  EXPECT_EQ(job().culprit().evidence(),
            "evidence of rank 2; it is read again on other nodes than n1; other nodes could read "
            "it: not the checkpoint but n1 is at fault");
  EXPECT_THAT(CommittedSteps(), ElementsAre(10, 20));
}

TEST_F(UnreadCheckpointTest, IsNotReadWhereItFailedAfterAnotherMachineRefusedTheJob) {
  CommitAndKill({10, 20}, 2);
  Do(Joined("n2", "a", 2));
  FailToRead();
  FailToRead();
  ASSERT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n2", "n2"));
  Do(Joined("n3", "a", 2));
  Event refused;
  refused.mutable_preflight_refused()->set_job_id("j");
  refused.mutable_preflight_refused()->set_attempt(4);
  refused.mutable_preflight_refused()->set_node_id("n2");
  refused.mutable_preflight_refused()->set_message("data.files: /data is empty");
  Do(refused);
  for (const char* node : {"n0", "n2"}) Do(Fenced(4, node, {}));
  BackoffElapsed(4);
  EXPECT_EQ(job().attempt(), 5);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n3", "n3")) << "n1 could not read it";
}

TEST_F(UnreadCheckpointTest, ThatNoMachineCanReadGivesWayToTheOlderOne) {
  CommitAndKill({10, 20}, 2);
  Do(Joined("n2", "a", 2));
  FailToRead();
  FailToRead();
  FailToRead(2, "n2");
  EXPECT_EQ(job().attempt(), 5);
  EXPECT_EQ(job().restore().step(), 10);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n2", "n2")) << "n2 is not at fault";
}

TEST_F(UnreadCheckpointTest, TheFifthOfFiveIsTriedWhateverTheLimitOnRestarts) {
  CommitAndKill({10, 20, 30, 40, 50}, 5);
  for (int i = 0; i < 8; ++i) FailToRead();
  EXPECT_EQ(job().attempt(), 10);
  EXPECT_EQ(job().state(), control::JOB_STATE_STARTING);
  EXPECT_EQ(job().restore().step(), 10);
  EXPECT_EQ(job().restore().source(), megascale::agent::v1::RestorePoint::SOURCE_STORAGE);
}

TEST_F(UnreadCheckpointTest, WithNoneThatCanBeReadTheJobStopsAndSaysHowToGoOn) {
  CommitAndKill({10, 20, 30, 40, 50}, 5);
  for (int i = 0; i < 10; ++i) FailToRead();
  EXPECT_EQ(job().attempt(), 11);
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "CheckpointsUnreadable");
  EXPECT_EQ(MissingIn(job().message(),
                      {"step 50 in /c/step-50-attempt-1: on node n1 in attempts 2 and 3 (rank 2: "
                       "evidence of rank 2); no other machine had room to try",
                       "step 10 in /c/step-10-attempt-1: on node n1 in attempts 10 and 11 ",
                       "megascale checkpoint verify /c/step-50-attempt-1", "--from DIRECTORY"}),
            "");
  EXPECT_THAT(CommittedSteps(), ElementsAre(10, 20, 30, 40, 50)) << "another machine may read them";
}

TEST_F(UnreadCheckpointTest, WhatTwoMachinesCannotReadIsSaidToBeDamaged) {
  CommitAndKill({20}, 1);
  Do(Joined("n2", "a", 2));
  FailToRead();
  FailToRead();
  FailToRead(2, "n2");
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(
      MissingIn(job().message(), {"on node n1 in attempts 2 and 3 ", "on node n2 in attempt 4 ",
                                  "damaged or gone, since n1, n2 failed alike"}),
      "");
}

TEST_F(UnreadCheckpointTest, AfterItsOwnTheOneThatItStartedFromIsTried) {
  CommitAndKill({20}, 1, "/from");
  for (int i = 0; i < 2; ++i) FailToRead();
  EXPECT_EQ(job().restore().directory(), "/from");
  for (int i = 0; i < 2; ++i) FailToRead();
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().attempt(), 5);
}

TEST_F(UnreadCheckpointTest, ThatCouldBeReadAfterAllIsGivenTheSamePatienceAgain) {
  CommitAndKill({10, 20}, 2);
  FailToRead();
  Do(Started(3));
  EXPECT_EQ(job().culprit().evidence(),
            "evidence of rank 2; it is read again; then it could be read");
  KillRank(3);
  BackoffElapsed(3);
  EXPECT_EQ(job().restore().step(), 20);
  EXPECT_EQ(job().attempts_without_progress(), 1);
}

// Storage may be away: the preflight waits for it, and a rank would fail again.
TEST_F(UnreadCheckpointTest, APreflightComesBeforeTheNextRead) {
  CommitAndKill({10, 20}, 2);
  EXPECT_EQ(job().stage(), pb::STAGE_RUN) << "the agents have passed";
  Do(FailedToRead(2, 2, "n1"));
  for (const char* node : {"n0", "n1"}) Do(Fenced(2, node, {}));
  BackoffElapsed(2);
  EXPECT_EQ(job().stage(), pb::STAGE_PREFLIGHT);
  EXPECT_TRUE(Desired("n1").ran_here());
  EXPECT_EQ(job().restore().step(), 20);
  Do(Passed("j", 3, "n0"));
  EXPECT_EQ(job().stage(), pb::STAGE_PREFLIGHT);
  Do(Passed("j", 3, "n1"));
  EXPECT_EQ(job().stage(), pb::STAGE_RUN);
}

TEST_F(DriverFailuresTest, AHostThatCannotReadTheDataIsFollowedByAPreflight) {
  Run();
  Do(Failed(1, -1, "n0", telemetry::FAILURE_CLASS_EXITED));
  for (const char* node : {"n0", "n1"}) Do(Fenced(1, node, {}));
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().stage(), pb::STAGE_PREFLIGHT);
}

// The identity is that of the random secret with which the log began.
TEST_F(DriverFailuresTest, TheOwnerIsTheSameInEveryAttemptAndEpochOfALog) {
  EXPECT_FALSE(DesiredFor(state_, "n0").jobs_size() > 0);
  EXPECT_EQ(LogId(state_), "");
  Event first;
  first.mutable_driver_started()->set_rules(kRules);
  first.mutable_driver_started()->set_secret("random");
  first.mutable_driver_started()->set_epoch(1);
  Do(first);
  Event submitted = Submitted("j", SpecOf(2, 2, 30));
  submitted.mutable_job_submitted()->set_spec_sha256("5bec");
  submitted.mutable_job_submitted()->set_take_over(true);
  Do(submitted);
  Do(JoinedWithBoundAddress("n0"));
  Do(JoinedWithBoundAddress("n1"));
  const auto owner = Desired("n0").owner();
  EXPECT_EQ(owner.job_id(), "j");
  EXPECT_EQ(owner.spec_sha256(), "5bec");
  EXPECT_THAT(owner.log_id(), SizeIs(32));
  EXPECT_EQ(owner.log_id().find("random"), std::string::npos);
  EXPECT_TRUE(Desired("n0").take_over());
  EXPECT_FALSE(Desired("n0").owns_directory());
  EXPECT_FALSE(Desired("n0").ran_here());
  for (const char* node : {"n0", "n1"}) {
    Event passed = Passed("j", 1, node);
    passed.mutable_preflight_passed()->mutable_preflight()->set_owns_directory(true);
    Do(passed);
  }
  EXPECT_TRUE(Desired("n0").owns_directory());
  Event manifest = Manifest(1, 10);
  Do(manifest);
  KillRank(1);
  BackoffElapsed(1);
  EXPECT_EQ(Desired("n0").restore().attempt(), 1);
  EXPECT_TRUE(Desired("n0").restore().without_owner()) << "as an agent of an older release did";
  EXPECT_EQ(Desired("n0").restore().owner().log_id(), owner.log_id());
  Event restored = first;
  restored.mutable_driver_started()->set_secret("");
  restored.mutable_driver_started()->set_epoch(2);
  restored.mutable_driver_started()->set_restored(true);
  Do(restored);
  EXPECT_EQ(OwnerOf(state_, job()).log_id(), owner.log_id());
}

// In the middle of an upgrade: an agent of the release before neither claims nor checks.
TEST_F(DriverFailuresTest, OnlyAnAttemptWhoseAgentsAllKnowOwnersHasOne) {
  Do(JoinedWithBoundAddress("n0"));
  Do(Joined("n1", "a", 2));
  Do(Submitted("j", SpecOf(2, 2, 30)));
  EXPECT_FALSE(Desired("n0").has_owner());
  for (const char* node : {"n0", "n1"}) Do(Passed("j", 1, node));
  Do(Manifest(1, 10));
  // n1 is upgraded. The preflight of n0 is of a time without owners, so it does not count.
  Event upgraded = Joined("n1", "b", 2);
  upgraded.mutable_node_joined()->mutable_hello()->set_binds_address(true);
  Do(upgraded);
  for (const char* node : {"n0", "n1"}) Do(Fenced(1, node, {}));
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_TRUE(Desired("n0").has_owner());
  EXPECT_FALSE(HasPreflight(job(), FindNode(state_, "n0")->hello()));
}

TEST_F(DriverFailuresTest, ASubmitThatTakesOverReplacesAJobThatWasRefusedBeforeItRan) {
  SubmitAndJoin();
  Event refused;
  refused.mutable_preflight_refused()->set_job_id("j");
  refused.mutable_preflight_refused()->set_attempt(1);
  refused.mutable_preflight_refused()->set_node_id("n0");
  refused.mutable_preflight_refused()->set_message("belongs to another job");
  Do(refused);
  ASSERT_EQ(job().state(), control::JOB_STATE_FAILED);
  const JobIndex index(state_);
  const IndexedState indexed(state_, index);
  Event again = Submitted("j", SpecOf(2, 2, 30));
  EXPECT_FALSE(IsNewSubmit(indexed, again.job_submitted()).value()) << "as the first one";
  again.mutable_job_submitted()->set_take_over(true);
  EXPECT_TRUE(IsNewSubmit(indexed, again.job_submitted()).value());
  Event forgotten;
  forgotten.mutable_jobs_forgotten()->add_job_ids("j");
  Do(forgotten);
  Do(again);
  EXPECT_EQ(job().state(), control::JOB_STATE_STARTING);
}

// The log of an older driver is replayed by that driver's rules.
TEST_F(UnreadCheckpointTest, OlderRulesStepOverAtOnce) {
  Event started;
  started.mutable_driver_started()->set_rules(2);
  Do(started);
  CommitAndKill({10}, 2);
  FailToRead();
  EXPECT_EQ(job().restore().source(), megascale::agent::v1::RestorePoint::SOURCE_INITIAL);
}

// Each event comes a second after the one before.
TEST_F(DriverFailuresTest, TheTimeAccountFollowsTheEventsOfAFailedAttempt) {
  constexpr int64_t kSecond = 1'000'000'000;
  Run();  // submitted in second 2, placed in 4, runs in 6
  Event loading;
  loading.mutable_loading_started()->set_job_id("j");
  loading.mutable_loading_started()->set_attempt(1);
  ASSERT_TRUE(Do(loading));
  EXPECT_FALSE(Do(loading)) << "once an attempt";
  Do(Started(1));
  Event steps;
  steps.mutable_steps_taken()->set_job_id("j");
  steps.mutable_steps_taken()->set_attempt(1);
  steps.mutable_steps_taken()->set_step(5);
  steps.mutable_steps_taken()->set_num_steps(5);
  steps.mutable_steps_taken()->set_step_nanos(kSecond);
  steps.mutable_steps_taken()->set_taken_unix_nanos(10 * kSecond);
  ASSERT_TRUE(Do(steps));
  EXPECT_EQ(AccountAt(job().time_book(), 10 * kSecond).kept_nanos(), kSecond);
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_EXITED));  // in second 11
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  if (job().stage() == pb::STAGE_BACKOFF) BackoffElapsed(1);
  ASSERT_EQ(job().attempt(), 2);
  const int64_t now = seconds_ * kSecond;
  const TimeAccount account = AccountAt(job().time_book(), now);
  EXPECT_EQ(account.queue_nanos(), 2 * kSecond);
  EXPECT_EQ(account.start_nanos(), 3 * kSecond);
  EXPECT_EQ(account.load_nanos(), 2 * kSecond);
  EXPECT_EQ(account.kept_nanos(), 0) << "the job begins anew";
  EXPECT_EQ(account.recomputation_nanos(), kSecond + kSecond / 5);
  EXPECT_EQ(account.detection_nanos(), kSecond - kSecond / 5);
  EXPECT_EQ(account.decision_nanos(), now - 11 * kSecond);
  EXPECT_EQ(account.wall_nanos(), now - 2 * kSecond);
}

// Job "j" has rank 0 on n0, rank 1 on n1, and ranks 2 and 3 on n2.
class FailedLinksOfJobsTest : public DriverCoreTest {
 protected:
  void RunOnThree(int rules = kRules) {
    Event started;
    started.mutable_driver_started()->set_rules(rules);
    Do(std::move(started));
    Do(Submitted("j", SpecOf(2, 2, 30)));
    for (const auto& [node_id, slots] : {std::pair("n0", 1), {"n1", 1}, {"n2", 2}}) {
      Do(Joined(node_id, "a", slots));
    }
    for (const char* node_id : {"n0", "n1", "n2"}) Do(Passed("j", 1, node_id));
    ASSERT_THAT(PlacedNodes(), ElementsAre("n0", "n1", "n2", "n2"));
  }
  // The rank on `node_id` got no answer from the others.
  static Event Unanswered(int64_t attempt, int rank, const std::string& node_id,
                          const std::vector<int>& unreached) {
    Event event = Failed(attempt, rank, node_id, telemetry::FAILURE_CLASS_ABORTED);
    for (const int other : unreached) {
      event.mutable_rank_failed()->mutable_failure()->add_unreached_ranks(other);
    }
    return event;
  }
  void FenceAll() {
    const int64_t attempt = job().attempt();
    const std::vector<std::string> placed = PlacedNodes();
    for (const std::string& node_id : std::set<std::string>(placed.begin(), placed.end())) {
      Do(Fenced(attempt, node_id, {}));
    }
    BackoffElapsed(attempt);
  }
  // As FailTheLink, before the processes have ended.
  void LoseTheLink() {
    const std::vector<std::string> placed = PlacedNodes();
    Do(Failed(job().attempt(), 2, placed[2], telemetry::FAILURE_CLASS_ABORTED));
    Do(Unanswered(job().attempt(), 0, placed[0], {1}));
  }
  void FailTheLink() {
    LoseTheLink();
    FenceAll();
  }
};

TEST_F(FailedLinksOfJobsTest, TheTwoMachinesAreTheCauseAndRanksThatWaitForThemConsequences) {
  RunOnThree();
  LoseTheLink();
  const Culprit& culprit = job().culprit();
  EXPECT_EQ(culprit.failure_class(), telemetry::FAILURE_CLASS_LINK);
  EXPECT_EQ(culprit.rank(), 0);
  EXPECT_EQ(culprit.node_id(), "n0");
  EXPECT_EQ(culprit.peer_rank(), 1);
  EXPECT_EQ(culprit.peer_node_id(), "n1");
  EXPECT_EQ(job().reason(), "LinkFailed");
  EXPECT_EQ(job().message(),
            "rank 0 on n0 got no answer from rank 1 on n1, though both machines reach the driver: "
            "evidence of rank 0");
  ASSERT_THAT(job().failures(), SizeIs(2));
  EXPECT_EQ(job().failures(1).culprit().rank(), 2);
}

TEST_F(FailedLinksOfJobsTest, ALinkThatFailedIsAvoidedWhereThereIsRoomAndCostsTheJobNoRestart) {
  RunOnThree();
  Do(Joined("n3", "a", 1));
  FailTheLink();
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n3", "n2", "n2"));
  EXPECT_EQ(job().attempts_without_progress(), 0);
  EXPECT_EQ(job().machine_failures(), 1);
  for (const auto& node : state_.nodes()) EXPECT_FALSE(node.has_quarantine());
}

// n0 reaches neither n1 nor n3, so n0 is left out, whichever link failed first.
TEST_F(FailedLinksOfJobsTest, TheMachineAtTheEndsOfSeveralFailedLinksIsLeftOut) {
  RunOnThree();
  Do(Joined("n3", "a", 1));
  FailTheLink();
  Do(Joined("n4", "a", 1));
  FailTheLink();
  EXPECT_EQ(job().attempt(), 3);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n1", "n3", "n2", "n2"));
}

TEST_F(FailedLinksOfJobsTest, WithoutRoomTheLinkIsTriedAgainAndTheJobFailsAfterTwentyAttempts) {
  RunOnThree();
  for (int attempt = 1; attempt <= kMachineFailuresMax; ++attempt) {
    FailTheLink();
    ASSERT_EQ(job().attempt(), attempt + 1);
    ASSERT_THAT(PlacedNodes(), ElementsAre("n0", "n1", "n2", "n2"));
    if (attempt == 1) Do(Passed("j", 2, "n0"));
  }
  LoseTheLink();
  FenceAll();
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "LinkFailed");
  EXPECT_EQ(
      job().message(),
      "gave up after 21 attempts in a row without progress that failures of machines ended; "
      "the last: rank 0 on n0 got no answer from rank 1 on n1, though both machines reach the "
      "driver: evidence of rank 0");
}

TEST_F(FailedLinksOfJobsTest, AFailedLinkIsForgottenAfterAnHour) {
  RunOnThree();
  FailTheLink();
  ASSERT_THAT(state_.failed_links(), SizeIs(1));
  seconds_ += 3590;
  Do(Joined("n4", "a", 1));
  EXPECT_THAT(state_.failed_links(), SizeIs(1));
  seconds_ += 20;
  Do(Joined("n5", "a", 1));
  EXPECT_THAT(state_.failed_links(), SizeIs(0));
}

TEST_F(FailedLinksOfJobsTest, AFailedLinkIsForgottenWhenAnAttemptTrainsOverIt) {
  RunOnThree();
  FailTheLink();
  Do(Started(2));
  EXPECT_THAT(state_.failed_links(), SizeIs(0));
}

TEST_F(FailedLinksOfJobsTest, UncordonForgetsTheFailedLinksOfAMachine) {
  RunOnThree();
  FailTheLink();
  EXPECT_FALSE(IsNewUncordon(state_, "n2").value());
  EXPECT_TRUE(IsNewUncordon(state_, "n1").value());
  EXPECT_TRUE(Do(Uncordoned("n1")));
  EXPECT_THAT(state_.failed_links(), SizeIs(0));
}

TEST_F(FailedLinksOfJobsTest, TheLossOfAMachineExplainsThatItDidNotAnswer) {
  RunOnThree();
  LoseTheLink();
  Do(Lost("n1", "a"));
  EXPECT_EQ(job().reason(), "NodeLost");
  EXPECT_EQ(job().culprit().node_id(), "n1");
  FenceAll();
  EXPECT_THAT(state_.failed_links(), SizeIs(0)) << "n1 does not reach the driver";
}

TEST_F(FailedLinksOfJobsTest, WhatAnAgentSaysOfLinksConcernsOtherMachinesThatLiveOnly) {
  RunOnThree();
  Do(Unanswered(1, 2, "n2", {2, 3, -1, 4, 1 << 30}));
  EXPECT_EQ(job().culprit().failure_class(), telemetry::FAILURE_CLASS_ABORTED);
  Do(Unanswered(1, 3, "n2", std::vector<int>(100'000, 0)));
  EXPECT_EQ(job().culprit().peer_node_id(), "n0");
  EXPECT_THAT(job().failures(0).unreached_ranks(), SizeIs(64));
  FenceAll();
  EXPECT_THAT(state_.failed_links(), SizeIs(1));
}

TEST_F(FailedLinksOfJobsTest, OlderRulesKnowNoLinks) {
  RunOnThree(/*rules=*/9);
  FailTheLink();
  EXPECT_EQ(job().culprit().failure_class(), telemetry::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(job().attempts_without_progress(), 1);
  EXPECT_THAT(state_.failed_links(), SizeIs(0));
}

// --- agents of two releases --------------------------------------------------------------------

TEST_F(DriverCoreTest, RanksBindTheirProofsToAddressesIfAllAgentsOfTheAttemptCan) {
  Do(JoinedWithBoundAddress("n0"));
  Do(Joined("n1", "a", 2));
  Do(Submitted("j", SpecOf(2, 2, 30)));
  for (const std::string id : {"n0", "n1"}) Do(Passed("j", 1, id));
  EXPECT_FALSE(DesiredFor(state_, "n0").jobs(0).binds_address());
  // n1 comes back with a newer version; what is left of the attempt is told as before.
  Event upgraded = JoinedWithBoundAddress("n1");
  upgraded.mutable_node_joined()->mutable_hello()->set_incarnation("b");
  Do(Lost("n1", "a"));
  Do(upgraded);
  EXPECT_FALSE(DesiredFor(state_, "n0").jobs(0).binds_address());
  for (const std::string id : {"n0", "n1"}) Do(Fenced(1, id, {}));
  BackoffElapsed(1);
  ASSERT_EQ(job().attempt(), 2) << job().message();
  for (const std::string id : {"n0", "n1"}) {
    EXPECT_TRUE(DesiredFor(state_, id).jobs(0).binds_address()) << id;
  }
}

TEST_F(DriverCoreTest, RanksEvaluateIfAllAgentsOfTheAttemptCan) {
  const auto joined = [](const std::string& id, bool evaluates) {
    Event event = Joined(id, "a", 2);
    event.mutable_node_joined()->mutable_hello()->set_evaluates(evaluates);
    return event;
  };
  for (const bool all : {false, true}) {
    for (const std::string id : {"n0", "n1"}) Do(joined(id, all || id == "n0"));
    Do(Submitted("j", SpecOf(2, 2, 30)));
    EXPECT_EQ(DesiredFor(state_, "n0").jobs(0).evaluates(), all);
    if (all) break;
    Event cancelled;
    cancelled.mutable_cancel_requested()->set_job_id("j");
    Do(cancelled);
    for (const std::string id : {"n0", "n1"}) Do(Fenced(1, id, {}));
    Event forgotten;
    forgotten.mutable_jobs_forgotten()->add_job_ids("j");
    ASSERT_TRUE(Do(forgotten));
    for (const std::string id : {"n0", "n1"}) Do(Lost(id, "a"));
  }
}

TEST_F(DriverCoreTest, OlderRulesBindNoAddress) {
  Event older;
  older.mutable_driver_started()->set_rules(9);
  Do(older);
  for (const std::string id : {"n0", "n1"}) Do(JoinedWithBoundAddress(id));
  Do(Submitted("j", SpecOf(2, 2, 30)));
  EXPECT_FALSE(DesiredFor(state_, "n0").jobs(0).binds_address());
}

TEST_F(DriverFailuresTest, EveryAttemptOfAJobWithOtherBatchesBeginsWhereItsSamplesAre) {
  Event submitted = Submitted("j", SpecOf(1, 1, 30));
  submitted.mutable_job_submitted()->set_from_checkpoint("/old");
  Do(submitted);
  Do(Joined("n0", "a", 2));
  Event passed = Passed("j", 1, "n0");
  passed.mutable_preflight_passed()->mutable_preflight()->set_first_step(20);
  passed.mutable_preflight_passed()->mutable_preflight()->set_sample_offset(-80);
  Do(passed);
  ASSERT_EQ(job().stage(), pb::STAGE_RUN) << job().message();
  EXPECT_EQ(Desired("n0").restore().sample_offset(), -80);
  for (const bool stored : {false, true}) {
    JobRecord record = job();
    if (stored) record.add_committed()->set_step(25);
    if (!stored) {
      auto* fenced = record.add_fenced();
      fenced->set_node_id("n0");
      auto* sealed = fenced->add_snapshots();
      sealed->set_attempt(record.attempt());
      sealed->set_step(24);
    }
    const megascale::agent::v1::RestorePoint restore = ChooseRestore(
        state_.rules(), record, {record.placements().begin(), record.placements().end()});
    EXPECT_EQ(restore.step(), stored ? 25 : 24);
    EXPECT_EQ(restore.source(), stored ? megascale::agent::v1::RestorePoint::SOURCE_STORAGE
                                       : megascale::agent::v1::RestorePoint::SOURCE_MEMORY);
    EXPECT_EQ(restore.sample_offset(), -80);
  }
}

TEST_F(DriverFailuresTest, AnAgentThatWouldBeginAtAnotherSampleIsNamed) {
  Event submitted = Submitted("j", SpecOf(2, 1, 30));
  submitted.mutable_job_submitted()->set_from_checkpoint("/old");
  Do(submitted);
  Do(Joined("n0", "a", 1));
  Do(Joined("n1", "b", 1));
  for (const char* node : {"n0", "n1"}) {
    Event passed = Passed("j", 1, node);
    auto* preflight = passed.mutable_preflight_passed()->mutable_preflight();
    preflight->set_first_step(20);
    preflight->set_sample_offset(std::string(node) == "n0" ? -80 : 0);
    Do(passed);
  }
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().message(),
            "the agent of node n1 does not begin at the first sample that /old has not trained on, "
            "because of its version; upgrade it");
}

}  // namespace
}  // namespace megascale::driver
