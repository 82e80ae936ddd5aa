#include "controlplane/driver/core/epoch.h"

#include "controlplane/driver/core/testing/test_core.h"

namespace megascale::driver {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(1'000'000);

class EpochTest : public DriverCoreTest {
 protected:
  void Restore() { Do(StartedEvent(state_, {kNow, "other secret", /*restored=*/true})); }
  Event EpochFenced(const std::string& node_id, int64_t epoch) const {
    Event event;
    event.mutable_epoch_fenced()->set_node_id(node_id);
    event.mutable_epoch_fenced()->set_incarnation("a");
    event.mutable_epoch_fenced()->set_epoch(epoch);
    return event;
  }
  megascale::agent::v1::ActualState Knows(int64_t epoch, int64_t version) const {
    megascale::agent::v1::ActualState report;
    report.set_epoch(epoch);
    report.set_known_version(version);
    report.set_known_proof(ProofOf(state_, epoch, version));
    return report;
  }
};

TEST_F(EpochTest, ANewLogBeginsAnEpochAndALaterDriverStaysInIt) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  const int64_t epoch = state_.epoch();
  EXPECT_EQ(epoch, absl::ToUnixNanos(kNow));
  EXPECT_EQ(state_.secret(), "secret");
  Do(StartedEvent(state_, {kNow + absl::Hours(1), "another", false}));
  EXPECT_EQ(state_.epoch(), epoch);
  EXPECT_EQ(state_.secret(), "secret");
  Restore();  // the clock went back, and yet the epoch grows
  EXPECT_EQ(state_.epoch(), epoch + 1);
}

TEST_F(EpochTest, ARestoredLogFencesEveryAttemptAndStartsTheNext) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Run();
  Do(Manifest(1, 10));
  const int64_t stage_before = job().stage_event();
  Restore();
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  EXPECT_EQ(job().reason(), "DriverRestored");
  EXPECT_GT(job().stage_event(), stage_before);
  EXPECT_EQ(Desired("n0").phase(), megascale::agent::v1::DesiredJob::PHASE_HOLD);
  EXPECT_EQ(DesiredFor(state_, "n0").epoch(), state_.epoch());
  const int64_t fenced = job().attempt();
  EXPECT_GE(fenced, kAttemptsOfAnEpoch) << "the lost part of the log may have begun attempt 2";
  Do(Fenced(fenced, "n0", {}));
  Do(Fenced(fenced, "n1", {}));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT) << "storage may be away";
  EXPECT_EQ(job().attempt(), fenced + 1);
  for (const char* node_id : {"n0", "n1"}) Do(Passed("j", fenced + 1, node_id));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(job().restore().step(), 10);
  EXPECT_EQ(job().attempts_without_progress(), 0) << "restoring is no failure";
}

TEST_F(EpochTest, AMachineThatTheCopyDoesNotKnowTheJobOnConfirmsTheFenceToo) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Run();
  Do(Joined("n2", "a", 2));  // where a later attempt may have been placed
  Restore();
  const int64_t fenced = job().attempt();
  Do(Fenced(fenced, "n0", {}));
  Do(Fenced(fenced, "n1", {}));
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  Do(Fenced(fenced, "n2", {}));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(EpochTest, OneEventOfEachMachineFencesAllJobsOfTheEpoch) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Run();
  Do(Submitted("k", SpecOf(1, 1, 30)));
  Restore();
  ASSERT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_FENCE);
  EXPECT_TRUE(Do(EpochFenced("n0", state_.epoch())));
  EXPECT_FALSE(Do(EpochFenced("n0", state_.epoch()))) << "it repeats what is known";
  EXPECT_FALSE(Do(EpochFenced("n1", state_.epoch() - 1))) << "of the epoch before";
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  EXPECT_TRUE(Do(EpochFenced("n1", state_.epoch())));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_QUEUED);
}

TEST_F(EpochTest, AnAgentThatStartsAnewDuringTheFenceConfirmsItToo) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Run();
  Restore();
  Do(EpochFenced("n0", state_.epoch()));
  Do(Joined("n0", "b", 2));
  Do(EpochFenced("n1", state_.epoch()));
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  Event fenced = EpochFenced("n0", state_.epoch());
  EXPECT_FALSE(Do(fenced)) << "of the agent before";
  fenced.mutable_epoch_fenced()->set_incarnation("b");
  EXPECT_TRUE(Do(fenced));
  EXPECT_NE(job().stage(), v1::STAGE_FENCE);
}

TEST_F(EpochTest, AQueuedJobThatMayHaveRunBeginsAtANewAttemptAndGetsNoSpare) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Do(Submitted("j", SpecOf(2, 1, 30)));
  Restore();
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  Event spare;
  spare.mutable_node_spare_set()->set_node_id("n1");
  spare.mutable_node_spare_set()->set_spare(true);
  Do(Joined("n1", "a", 1));
  Do(spare);
  Do(Joined("n0", "a", 1));
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  Do(Joined("n2", "a", 2));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(job().attempt(), kAttemptsOfAnEpoch + 1);
  EXPECT_EQ(job().attempt_reason(), "");
}

TEST_F(EpochTest, ACopyOfALogWithoutEpochsFencesEveryAttemptTooWhenItIsRestored) {
  Run();
  ASSERT_EQ(state_.epoch(), 0);
  Restore();
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  EXPECT_EQ(job().reason(), "DriverRestored");
}

TEST_F(EpochTest, AJobThatWasBeingCancelledWhenTheCopyWasMadeIsCancelled) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Run();
  Do(Cancelled(false));
  Restore();
  Do(Fenced(job().attempt(), "n0", {}));
  Do(Fenced(job().attempt(), "n1", {}));
  EXPECT_EQ(job().state(), megascale::control::v1::JOB_STATE_CANCELLED);
}

TEST_F(EpochTest, ADriverStopsWhenAnAgentHasServedALaterState) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  const int64_t epoch = state_.epoch();
  EXPECT_TRUE(CheckIsNewest(state_, {}, 100).ok()) << "an agent that was just started";
  EXPECT_TRUE(CheckIsNewest(state_, Knows(epoch, 100), 100).ok());
  EXPECT_TRUE(CheckIsNewest(state_, Knows(epoch - 1, 900), 100).ok()) << "it hears of this epoch";
  EXPECT_EQ(CheckIsNewest(state_, Knows(epoch, 101), 100).code(),
            absl::StatusCode::kFailedPrecondition)
      << "another driver runs on a copy";
  EXPECT_EQ(CheckIsNewest(state_, Knows(epoch + 1, 1), 100).code(),
            absl::StatusCode::kFailedPrecondition)
      << "this is the older of two copies";
}

TEST_F(EpochTest, AnAgentThatInventsALaterStateStopsNoDriver) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  auto invented = Knows(state_.epoch(), 100);
  invented.set_known_version(200);
  EXPECT_TRUE(CheckIsNewest(state_, invented, 100).ok());
}

TEST_F(EpochTest, AReportOfAnotherEpochDoesNotCount) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  EXPECT_TRUE(IsOfThisEpoch(state_, {})) << "an agent that knows no epoch reports nothing yet";
  EXPECT_TRUE(IsOfThisEpoch(state_, Knows(state_.epoch(), 1)));
  EXPECT_FALSE(IsOfThisEpoch(state_, Knows(state_.epoch() - 1, 1)));
}

// An agent that served a driver with another log.
megascale::agent::v1::ActualState ServesAnother(int64_t epoch) {
  megascale::agent::v1::ActualState report;
  report.set_epoch(epoch);
  report.set_known_version(3);
  report.set_known_proof("of another log");
  return report;
}

TEST_F(EpochTest, AFreshDriverWhoseClockIsBehindGoesAboveTheEpochThatAnAgentKnows) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  const int64_t later = absl::ToUnixNanos(kNow + absl::Hours(24 * 365));
  EXPECT_FALSE(*IsBehind(state_, ServesAnother(state_.epoch() - 1)))
      << "the agent takes its states";
  EXPECT_FALSE(*IsBehind(state_, Knows(later, 1))) << "of this log: CheckIsNewest";
  EXPECT_TRUE(*IsBehind(state_, ServesAnother(later)));
  Do(Submitted("j", SpecOf(2, 2, 30)));
  EXPECT_TRUE(*IsBehind(state_, ServesAnother(later))) << "the job has not begun";
  Do(NewerEpochEvent(state_, later, kNow));
  EXPECT_EQ(state_.epoch(), later + 1);
  EXPECT_EQ(state_.secret(), "secret");
  EXPECT_FALSE(*IsBehind(state_, ServesAnother(later)));
}

TEST_F(EpochTest, ADriverThatHasBegunAJobTellsTheAgentOfANewerEpochThatItIsTheWrongOne) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  Run();
  const auto behind = IsBehind(state_, ServesAnother(state_.epoch() + 1));
  EXPECT_EQ(behind.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(behind.status().message().find("this is the wrong driver for it"), std::string::npos);
}

TEST_F(EpochTest, AnEpochThatNoClockGivesIsNotBelieved) {
  Do(StartedEvent(state_, {kNow, "secret", false}));
  EXPECT_FALSE(IsBehind(state_, ServesAnother(kEpochMax + 1)).ok());
  EXPECT_TRUE(IsBehind(state_, ServesAnother(kEpochMax)).ok());
}

}  // namespace
}  // namespace megascale::driver
