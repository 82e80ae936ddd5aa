// What is done for a job that ends elsewhere than at a step's end, and what its first attempt after
// a restore of the log, a take-over or another run's checkpoint does.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/placement.h"
#include "controlplane/driver/core/recovery.h"
#include "controlplane/driver/core/testing/test_core.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::HasSubstr;

constexpr char kLeft[] =
    "cancelled; newest checkpoint: step 20 in /c/step-20-attempt-1; checkpoints older than step 10 "
    "may be left in /state/jobs/j/checkpoints: ";

class JobEndTest : public DriverCoreTest {
 protected:
  void Join(const std::string& node_id, const std::string& incarnation = "a", int num_slots = 2) {
    Do(JoinedWithBoundAddress(node_id, incarnation, num_slots));
  }
  // Trains until the checkpoints of steps 10 and 20 are committed, which is as many as are kept.
  void Train() {
    Do(Submitted("j", SpecOf(2, 2, 30)));
    for (const char* node_id : {"n0", "n1"}) Join(node_id);
    for (const char* node_id : {"n0", "n1"}) Do(Passed("j", 1, node_id));
    for (const int64_t step : {10, 20}) Do(Manifest(1, step));
  }
  // The machine of rank 0 is gone for good, and the job waits for another one.
  void WaitForAMachine() {
    Train();
    Do(Lost("n0", "a"));
    Do(Fenced(1, "n1", {}));
    BackoffElapsed(1);
    ASSERT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS);
  }
  bool HasRetentionTimer() const {
    for (const Timer& timer : TimersFor(state_)) {
      if (timer.when_due.retention_ended().timed_out()) return true;
    }
    return false;
  }
};

TEST_F(JobEndTest, AnotherAgentDeletesForAJobThatIsCancelledWhileItWaits) {
  WaitForAMachine();
  Do(Cancelled(true));
  ASSERT_EQ(job().stage(), v1::STAGE_RETAIN);
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLING);
  EXPECT_EQ(Desired("n1").phase(), agent::DesiredJob::PHASE_RETAIN);
  EXPECT_TRUE(Desired("n1").delete_checkpoints());
  EXPECT_TRUE(HasRetentionTimer());
  Do(RetentionEnded(1, 20));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_EQ(job().message(), "cancelled; newest checkpoint: step 20 in /c/step-20-attempt-1");
}

TEST_F(JobEndTest, AfterItsDeadlineTheJobSaysWhatMayBeLeft) {
  WaitForAMachine();
  Do(Cancelled(true));
  Event timed_out = RetentionEnded(1, 20);
  timed_out.mutable_retention_ended()->set_timed_out(true);
  Do(timed_out);
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_EQ(job().message(), absl::StrCat(kLeft, "their deletion took too long"));
}

TEST_F(JobEndTest, AnErrorOfStorageIsPassedOn) {
  WaitForAMachine();
  Do(Cancelled(true));
  Event failed = RetentionEnded(1, 20);
  failed.mutable_retention_ended()->set_error("delete /c/x: read-only file system");
  Do(failed);
  EXPECT_EQ(job().message(), absl::StrCat(kLeft, "delete /c/x: read-only file system"));
}

TEST_F(JobEndTest, WithoutAnAgentThatCanDeleteTheJobEndsAtOnceAndSaysSo) {
  WaitForAMachine();
  Do(Lost("n1", "a"));
  Do(Cancelled(true));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_EQ(job().message(),
            absl::StrCat(kLeft, "no agent of the job could be told to delete them"));
}

TEST_F(JobEndTest, IfTheDeletingAgentLeavesAnotherOneDeletes) {
  Train();
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_REFUSED));
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(1, node_id, {}));
  ASSERT_EQ(job().stage(), v1::STAGE_RETAIN);
  EXPECT_THAT(job().message(), HasSubstr("; waits for older checkpoints to be deleted"));
  EXPECT_TRUE(Desired("n0").delete_checkpoints());
  EXPECT_EQ(Desired("n1").phase(), agent::DesiredJob::PHASE_HOLD);
  Do(Lost("n0", "a"));
  EXPECT_TRUE(Desired("n1").delete_checkpoints());
  Do(Lost("n1", "a"));
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_THAT(job().message(), HasSubstr("/checkpoints: the agents that could delete them left"));
}

TEST_F(JobEndTest, ACancelOfAJobThatIsAboutToFailHolds) {
  Train();
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_REFUSED));
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(1, node_id, {}));
  Do(Cancelled(true));
  Do(RetentionEnded(1, 20));
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
}

TEST_F(JobEndTest, ARestoredDriverBeginsWithAPreflight) {
  Train();
  Event restored;
  restored.mutable_driver_started()->set_rules(kRules);
  restored.mutable_driver_started()->set_epoch(7);
  restored.mutable_driver_started()->set_restored(true);
  Do(restored);
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(1 + kAttemptsOfAnEpoch, node_id, {}));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(job().restore().step(), 20);
}

TEST_F(JobEndTest, AttemptsGoOnAboveThoseThatTheDirectoryHasHad) {
  SubmitAndJoin();
  Event passed = Passed("j", 1, "n0");
  passed.mutable_preflight_passed()->mutable_preflight()->set_newest_attempt(7);
  Do(passed);
  Do(Passed("j", 1, "n1"));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(job().attempt(), 8);
  EXPECT_EQ(Desired("n1").attempt(), 8);
}

TEST_F(JobEndTest, AnotherRunsCheckpointIsReadOnceAndBlamesNoMachine) {
  Train();
  KillRank(1);
  BackoffElapsed(1);
  ASSERT_EQ(job().attempt(), 2);
  Event others = FailedToRead(2, 2, "n1");
  others.mutable_rank_failed()->mutable_failure()->set_of_another_run(true);
  others.mutable_rank_failed()->mutable_failure()->set_message("/c/x: is another's");
  Do(others);
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(2, node_id, {}));
  BackoffElapsed(2);
  for (const char* node_id : {"n0", "n1"}) Do(Passed("j", job().attempt(), node_id));
  EXPECT_EQ(job().restore().step(), 10) << "it is not read again";
  EXPECT_EQ(job().culprit().evidence(),
            "/c/x: is another's; an older checkpoint is used: /c/step-10-attempt-1");
  EXPECT_FALSE(CouldBeOfMachine(job()));
  others.mutable_rank_failed()->set_attempt(3);
  Do(others);
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(3, node_id, {}));
  EXPECT_EQ(job().reason(), "CheckpointsUnreadable");
  EXPECT_THAT(job().message(), HasSubstr("Tried: step 20: /c/x: is another's; step 10: "));
}

// The machines n1 to n4 have no storage, and the job never ran there.
TEST_F(JobEndTest, MachinesWhoseStorageIsAwayDoNotEndTheJob) {
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Do(Joined("n0", "a", 1));
  Do(Passed("j", 1, "n0"));
  for (const char* node_id : {"n1", "n2", "n3", "n4", "n5"}) Do(Joined(node_id, "a", 1));
  Do(Lost("n0", "a"));
  BackoffElapsed(1);
  for (int i = 1; i <= 4; ++i) {
    const std::string node_id = absl::StrCat("n", i);
    const int64_t attempt = job().attempt();
    ASSERT_EQ(PlacedNodes(), std::vector<std::string>{node_id}) << job().message();
    Event away;
    away.mutable_preflight_refused()->set_job_id("j");
    away.mutable_preflight_refused()->set_attempt(attempt);
    away.mutable_preflight_refused()->set_node_id(node_id);
    away.mutable_preflight_refused()->set_storage_away(true);
    Do(away);
    Do(Fenced(attempt, node_id, {}));
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(PlacedNodes(), std::vector<std::string>{"n5"}) << job().message();
}

// Nobody in one half reaches anybody in the other half, and only the second has room. The simple
// search leaves out its machines first.
TEST(PlaceJobTest, FindsTheHalfOfTheMachinesThatHasRoom) {
  constexpr int kHalf = 16;
  DriverState state;
  NodePairs failed;
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  Apply(started, &state);
  for (int i = 0; i < kHalf; ++i) {
    Apply(Joined(absl::StrCat("a", 10 + i), "a", 1), &state);
    Apply(Joined(absl::StrCat("b", 10 + i), "a", i == 0 ? 2 : 1), &state);
    for (int j = 0; j < kHalf; ++j) {
      failed.emplace_back(absl::StrCat("a", 10 + i), absl::StrCat("b", 10 + j));
    }
  }
  Event submitted = Submitted("j", SpecOf(kHalf + 1, 1, 30));
  v1::JobRecord job;
  *job.mutable_submitted() = submitted.job_submitted();
  job.set_stage(v1::STAGE_QUEUED);
  const PlacementResult placed = PlaceJob(state, job, failed);
  ASSERT_EQ(placed.placements.size(), size_t{kHalf + 1});
  for (const auto& placement : placed.placements) EXPECT_EQ(placement.node_id()[0], 'b');
}

}  // namespace
}  // namespace megascale::driver
