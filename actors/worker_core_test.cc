#include "actors/worker_core.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megascale::actors {
namespace {

using Kind = WorkerAction::Kind;

engine::StepResult Result(int64_t step, engine::StopFlag stop = engine::StopFlag::kNone) {
  engine::StepResult result;
  result.record.set_step(step);
  result.stop = stop;
  return result;
}

// Runs a core whose every action succeeds at once; returns what it did, phases left out.
class Runner {
 public:
  explicit Runner(WorkerCoreOptions options) : core_(options) {}

  std::string Run() {
    Take(core_.Start());
    while (next_ < pending_.size()) Perform(WorkerAction(pending_[next_++]));
    return trace_;
  }

  void StopAt(int64_t step, engine::StopFlag flag) {
    stop_step_ = step;
    stop_flag_ = flag;
  }

 private:
  void Take(std::vector<WorkerAction> actions) {
    for (WorkerAction& action : actions) pending_.push_back(std::move(action));
  }

  void Perform(const WorkerAction& action) {
    const auto stop = action.step == stop_step_ ? stop_flag_ : engine::StopFlag::kNone;
    switch (action.kind) {
      case Kind::kJoinGroups:
        return Take(core_.OnJoined(absl::OkStatus()));
      case Kind::kLoadState:
        return Take(core_.OnLoaded(absl::OkStatus()));
      case Kind::kStartStep:
        absl::StrAppend(&trace_, "s", action.step, " ");
        Take(core_.OnOwnerFinished(action.step, absl::OkStatus(), Result(action.step)));
        return Take(
            core_.OnOwnerFinished(action.step, absl::OkStatus(), Result(action.step, stop)));
      case Kind::kTakeSnapshot:
        absl::StrAppend(&trace_, "c", action.step, " ");
        return Take(core_.OnSnapshot(action.step, 0, absl::OkStatus()));
      case Kind::kFinish:
        absl::StrAppend(&trace_, action.stopped ? "stopped" : "finished", action.step);
        return;
      default:
        return;
    }
  }

  WorkerCore core_;
  std::vector<WorkerAction> pending_;
  size_t next_ = 0;
  int64_t stop_step_ = -1;
  engine::StopFlag stop_flag_ = engine::StopFlag::kNone;
  std::string trace_;
};

TEST(WorkerCoreTest, StepsSnapshotsAtTheIntervalAndAtTheLastStep) {
  Runner runner({.first_step = 0, .last_step = 5, .checkpoint_interval = 2});
  EXPECT_EQ(runner.Run(), "s1 s2 c2 s3 s4 c4 s5 c5 finished5");
}

TEST(WorkerCoreTest, WithoutAnIntervalOnlyTheLastStepIsKept) {
  Runner runner({.first_step = 0, .last_step = 3, .checkpoint_interval = 0});
  EXPECT_EQ(runner.Run(), "s1 s2 s3 c3 finished3");
}

TEST(WorkerCoreTest, ARestoredAttemptGoesOnBehindItsRestorePoint) {
  Runner runner({.first_step = 4, .last_step = 6, .checkpoint_interval = 2});
  EXPECT_EQ(runner.Run(), "s5 s6 c6 finished6");
}

TEST(WorkerCoreTest, AnAttemptRestoredAtTheLastStepOnlyMakesItsCheckpoint) {
  Runner runner({.first_step = 6, .last_step = 6, .checkpoint_interval = 2});
  EXPECT_EQ(runner.Run(), "c6 finished6");
}

TEST(WorkerCoreTest, AnAgreedStopEndsBehindTheStep) {
  Runner runner({.first_step = 0, .last_step = 9, .checkpoint_interval = 4});
  runner.StopAt(3, engine::StopFlag::kStop);
  EXPECT_EQ(runner.Run(), "s1 s2 s3 stopped3");
}

TEST(WorkerCoreTest, AnAgreedStopWithCheckpointSnapshotsFirst) {
  Runner runner({.first_step = 0, .last_step = 9, .checkpoint_interval = 4});
  runner.StopAt(3, engine::StopFlag::kStopWithCheckpoint);
  EXPECT_EQ(runner.Run(), "s1 s2 s3 c3 stopped3");
}

TEST(WorkerCoreTest, AStopAtTheLastStepIsAFinish) {
  Runner runner({.first_step = 0, .last_step = 2, .checkpoint_interval = 0});
  runner.StopAt(2, engine::StopFlag::kStop);
  EXPECT_EQ(runner.Run(), "s1 s2 c2 finished2");
}

TEST(WorkerCoreTest, AFailureOfEitherOwnerIsReportedOnce) {
  WorkerCore core({.first_step = 0, .last_step = 2});
  core.OnLoaded(absl::OkStatus());
  EXPECT_TRUE(core.OnOwnerFinished(1, absl::AbortedError("rank 2 is gone"), {}).empty());
  const auto actions = core.OnOwnerFinished(1, absl::OkStatus(), Result(1));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kReportFailure);
  EXPECT_EQ(actions[0].failure.failure_class(), telemetry::v1::FAILURE_CLASS_ABORTED);
  EXPECT_TRUE(core.OnOwnerFinished(1, absl::OkStatus(), Result(1)).empty());
  EXPECT_TRUE(core.OnStopRequested(true).empty());
}

TEST(WorkerCoreTest, FailureClassesFollowTheStatusCode) {
  EXPECT_EQ(FailureOf(absl::OutOfRangeError("nan")).failure_class(),
            telemetry::v1::FAILURE_CLASS_DIVERGED);
  EXPECT_EQ(FailureOf(absl::DataLossError("x")).failure_class(),
            telemetry::v1::FAILURE_CLASS_CORRUPT);
  EXPECT_EQ(FailureOf(absl::InvalidArgumentError("x")).failure_class(),
            telemetry::v1::FAILURE_CLASS_REFUSED);
  EXPECT_EQ(FailureOf(absl::InternalError("x")).failure_class(),
            telemetry::v1::FAILURE_CLASS_EXITED);
}

}  // namespace
}  // namespace megascale::actors
