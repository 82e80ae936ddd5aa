#include "actors/worker_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/engine/testing/test_job.h"

namespace megascale::actors {
namespace {

using ::testing::HasSubstr;
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

  // What an evaluation finds.
  std::function<absl::StatusOr<std::optional<double>>(int64_t step)> held_out = [](int64_t step) {
    return static_cast<double>(step) / 2;
  };

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
        return Take(core_.OnLoaded(absl::OkStatus(), ""));
      case Kind::kStartStep:
        absl::StrAppend(&trace_, "s", action.step, " ");
        return Take(core_.OnStepFinished(action.step, Result(action.step, stop)));
      case Kind::kEvaluate:
        absl::StrAppend(&trace_, "e", action.step, " ");
        return Take(core_.OnEvaluated(action.step, held_out(action.step)));
      case Kind::kReportStep:
        if (!action.record.has_held_out_loss()) return;
        absl::StrAppend(&trace_, "r", action.record.held_out_loss(), " ");
        return;
      case Kind::kReportWarning:
        absl::StrAppend(&trace_, "w ");
        return;
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

WorkerCoreOptions Evaluated(int64_t interval) {
  return {.first_step = 0,
          .last_step = 5,
          .checkpoint_interval = 2,
          .is_evaluated = [interval](int64_t step) { return step % interval == 0 || step == 5; }};
}

// The record waits for the evaluation, and comes before the snapshot: a restored attempt does not
// evaluate these weights again.
TEST(WorkerCoreTest, EvaluatesBetweenAStepAndItsReportAndSnapshot) {
  EXPECT_EQ(Runner(Evaluated(2)).Run(), "s1 s2 e2 r1 c2 s3 s4 e4 r2 c4 s5 e5 r2.5 c5 finished5");
}

TEST(WorkerCoreTest, AStopToGoOnElsewhereEvaluatesAndOneForGoodDoesNot) {
  for (const auto& [flag, trace] :
       {std::pair(engine::StopFlag::kStopWithCheckpoint, "s1 s2 e2 r1 c2 stopped2"),
        std::pair(engine::StopFlag::kStop, "s1 s2 c2 stopped2")}) {
    Runner runner(Evaluated(2));
    runner.StopAt(2, flag);
    EXPECT_EQ(runner.Run(), trace);
  }
}

TEST(WorkerCoreTest, WithoutAFiniteLossTheRecordHasNone) {
  Runner without(Evaluated(4));
  without.held_out = [](int64_t) { return std::nullopt; };
  EXPECT_EQ(without.Run(), "s1 s2 c2 s3 s4 e4 c4 s5 e5 c5 finished5");
  Runner overflow(Evaluated(4));
  overflow.held_out = [](int64_t) { return std::numeric_limits<double>::infinity(); };
  EXPECT_EQ(overflow.Run(), "s1 s2 c2 s3 s4 e4 w c4 s5 e5 w c5 finished5");
}

TEST(WorkerCoreTest, AFailedEvaluationEndsTheAttempt) {
  Runner runner(Evaluated(2));
  runner.held_out = [](int64_t) { return absl::AbortedError("rank 1 is gone"); };
  EXPECT_EQ(runner.Run(), "s1 s2 e2 ");
}

TEST(WorkerCoreTest, AStopAtTheLastStepIsAFinish) {
  Runner runner({.first_step = 0, .last_step = 2, .checkpoint_interval = 0});
  runner.StopAt(2, engine::StopFlag::kStop);
  EXPECT_EQ(runner.Run(), "s1 s2 c2 finished2");
}

TEST(WorkerCoreTest, AFailedStepIsReportedOnce) {
  WorkerCore core({.first_step = 0, .last_step = 2});
  core.OnLoaded(absl::OkStatus(), "");
  const auto actions = core.OnStepFinished(1, absl::AbortedError("rank 2 is gone"));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kReportFailure);
  EXPECT_EQ(actions[0].failure.failure_class(), telemetry::v1::FAILURE_CLASS_ABORTED);
  EXPECT_TRUE(core.OnStepFinished(1, Result(1)).empty());
  EXPECT_TRUE(core.OnStopRequested(true).empty());
}

// A result that was read too early is that of the step before.
TEST(WorkerCoreDeathTest, TheResultOfAnotherStepIsNotReported) {
  WorkerCore core({.first_step = 0, .last_step = 3});
  core.OnLoaded(absl::OkStatus(), "");
  EXPECT_EQ(core.OnStepFinished(1, Result(1))[0].record.step(), 1);
  EXPECT_DEATH(core.OnStepFinished(2, Result(1)), "record.step\\(\\) == step");
}

TEST(WorkerCoreTest, AWarningOfALoadIsReportedBeforeTheFirstStep) {
  WorkerCore core({.first_step = 10, .last_step = 20});
  const auto actions = core.OnLoaded(absl::OkStatus(), "another machine read it");
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_EQ(actions[0].kind, Kind::kReportWarning);
  EXPECT_EQ(actions[0].warning, "another machine read it");
  EXPECT_EQ(actions[2].kind, Kind::kStartStep);
}

TEST(WorkerCoreTest, ACheckpointThatCannotBeReadIsToldFromDamageDuringTraining) {
  WorkerCore loading({.first_step = 10, .last_step = 20});
  const auto unread = loading.OnLoaded(absl::DataLossError("shard x"), "");
  ASSERT_EQ(unread.size(), 1u);
  EXPECT_TRUE(unread[0].failure.at_restore());
  EXPECT_FALSE(unread[0].failure.of_another_run());
  agent::v1::RestorePoint restore;
  restore.mutable_owner()->set_job_id("j");
  WorkerCore deceived({.first_step = 10, .last_step = 20});
  const auto others = deceived.OnLoaded(checkpoint::CheckIsCommitted({}, restore), "");
  EXPECT_TRUE(others[0].failure.at_restore() && others[0].failure.of_another_run());
  WorkerCore crowded({.first_step = 10, .last_step = 20});
  EXPECT_FALSE(crowded.OnLoaded(absl::ResourceExhaustedError("x"), "")[0].failure.at_restore());
  WorkerCore training({.first_step = 10, .last_step = 20});
  training.OnLoaded(absl::OkStatus(), "");
  const auto damaged = training.OnStepFinished(11, absl::DataLossError("batch"));
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_FALSE(damaged[0].failure.at_restore());
}

// No other attempt would do better, unless storage or a peer failed.
TEST(WorkerCoreTest, ATableOfProductsThatTheUserHasToMendEndsTheJob) {
  const auto class_of = [](const absl::Status& status) {
    WorkerCore core({.first_step = 10, .last_step = 20});
    const auto actions = core.OnProductsRefused(status);
    EXPECT_EQ(actions.size(), 1u);
    EXPECT_FALSE(actions[0].failure.at_restore());
    return actions[0].failure.failure_class();
  };
  EXPECT_EQ(class_of(absl::InvalidArgumentError("products.json is damaged")),
            telemetry::v1::FAILURE_CLASS_REFUSED);
  EXPECT_EQ(class_of(absl::AbortedError("the attempt ended")),
            telemetry::v1::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(class_of(base::ErrnoStatus(EIO, "products.json")), telemetry::v1::FAILURE_CLASS_EXITED);
}

constexpr absl::StatusCode kAllCodes[] = {
    absl::StatusCode::kCancelled,          absl::StatusCode::kUnknown,
    absl::StatusCode::kInvalidArgument,    absl::StatusCode::kDeadlineExceeded,
    absl::StatusCode::kNotFound,           absl::StatusCode::kAlreadyExists,
    absl::StatusCode::kPermissionDenied,   absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted,
    absl::StatusCode::kOutOfRange,         absl::StatusCode::kUnimplemented,
    absl::StatusCode::kInternal,           absl::StatusCode::kUnavailable,
    absl::StatusCode::kDataLoss,           absl::StatusCode::kUnauthenticated};

bool IsFinal(telemetry::v1::FailureClass failure_class) {
  return failure_class == telemetry::v1::FAILURE_CLASS_REFUSED ||
         failure_class == telemetry::v1::FAILURE_CLASS_DIVERGED ||
         failure_class == telemetry::v1::FAILURE_CLASS_STORAGE;
}

TEST(WorkerCoreTest, NothingThatGoesWrongBetweenRanksOrWithStorageIsFinal) {
  const WorkerCoreOptions options = {.first_step = 0, .last_step = 2};
  for (const absl::StatusCode code : kAllCodes) {
    const absl::Status status(code, "why");
    WorkerCore joins(options);
    EXPECT_FALSE(IsFinal(joins.OnJoined(status)[0].failure.failure_class())) << status;
    WorkerCore loads(options);
    EXPECT_FALSE(IsFinal(loads.OnLoaded(status, "")[0].failure.failure_class())) << status;
    WorkerCore saves(options);
    EXPECT_FALSE(IsFinal(saves.OnSnapshot(0, -1, status)[0].failure.failure_class())) << status;
    WorkerCore steps(options);
    const auto failure_class = steps.OnStepFinished(1, status)[0].failure.failure_class();
    EXPECT_EQ(IsFinal(failure_class), code == absl::StatusCode::kOutOfRange) << status;
  }
}

TEST(WorkerCoreTest, AStepWhoseNumbersAreNotFiniteDiverged) {
  WorkerCore core({.first_step = 0, .last_step = 2});
  EXPECT_EQ(core.OnStepFinished(1, absl::OutOfRangeError("nan"))[0].failure.failure_class(),
            telemetry::v1::FAILURE_CLASS_DIVERGED);
}

// The host cannot read the numbers of this device.
TEST(WorkerCoreTest, ANotFiniteTensorOnADeviceEndsAsDivergedWithItsName) {
  job::v1::JobSpec spec = engine::ToyJob(engine::WriteTestText("text"), 1, 1);
  spec.mutable_optimizer()->set_lr(1e30);
  spec.mutable_optimizer()->set_clip_grad(0);
  engine::RunOptions options(spec);
  options.make_device = [](int) { return device::StrictDevice::Create(); };
  absl::Status ended;
  options.on_failure = [&](int, const absl::Status& status) { ended = status; };
  engine::RunJob(options);
  WorkerCore core({.first_step = 0, .last_step = spec.train().steps()});
  const std::vector<WorkerAction> actions = core.OnStepFinished(1, ended);
  ASSERT_FALSE(actions.empty());
  EXPECT_EQ(actions[0].kind, Kind::kReportFailure);
  EXPECT_EQ(actions[0].failure.failure_class(), telemetry::v1::FAILURE_CLASS_DIVERGED);
  EXPECT_THAT(actions[0].failure.message(),
              ::testing::ContainsRegex("it began in .*with [a-z_.]+[.]weight gave -?(nan|inf)"));
}

// A rank whose device hangs says so itself, while its device still hangs: its peer, which can only
// report the end of their exchange, is not to be taken for the cause.
TEST(WorkerCoreTest, ARankWhoseDeviceHangsInAStepEndsAsHungBeforeItsPeerIsBlamed) {
  job::v1::JobSpec spec = engine::ToyJob(engine::WriteTestText("text"), /*data=*/2, 1);
  // In the order of runtime/job/deadlines.h: the job's defaults for the start are long.
  spec.mutable_fault()->mutable_progress_timeout()->set_seconds(4);
  spec.mutable_fault()->mutable_start_timeout()->set_seconds(5);
  engine::RunOptions options(spec);
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, device::StrictDevice*> devices;
  std::map<int, absl::Status> ended;
  options.make_device = [&](int rank) {
    auto device = device::StrictDevice::Create();
    const std::lock_guard<std::mutex> lock(mutex);
    devices[rank] = device.get();
    return device;
  };
  options.after_step = [&] { devices.at(1)->Hold(); };
  options.on_failure = [&](int rank, const absl::Status& status) {
    std::unique_lock<std::mutex> lock(mutex);
    ended[rank] = status;
    changed.notify_all();
    if (rank == 1) return;
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return ended.size() == 2; }))
        << "rank 1 waits for its device";
    devices.at(1)->Release();  // so that its engine can end
  };
  engine::RunJob(options);
  ASSERT_EQ(ended.size(), 2u);
  WorkerCore hung({.first_step = 1, .last_step = spec.train().steps()});
  const std::vector<WorkerAction> actions = hung.OnStepFinished(2, ended[1]);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].failure.failure_class(), telemetry::v1::FAILURE_CLASS_HUNG);
  EXPECT_THAT(actions[0].failure.message(), ::testing::StartsWith("INTERNAL: rank 1: step 2: "));
  EXPECT_THAT(actions[0].failure.message(), HasSubstr("the device of rank 1 hangs"));
  WorkerCore peer({.first_step = 1, .last_step = spec.train().steps()});
  EXPECT_EQ(peer.OnStepFinished(2, ended[0])[0].failure.failure_class(),
            telemetry::v1::FAILURE_CLASS_ABORTED)
      << ended[0];
}

TEST(FailureOfTest, APeerThatIsGoneIsAConsequenceAndAnErrorOfThisMachineIsNot) {
  EXPECT_EQ(FailureOf(absl::UnavailableError("rank 1 hung up")).failure_class(),
            telemetry::v1::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(FailureOf(base::ErrnoStatus(ESTALE, "shard of rank 1")).failure_class(),
            telemetry::v1::FAILURE_CLASS_EXITED);
  EXPECT_EQ(FailureOf(absl::DataLossError("x")).failure_class(),
            telemetry::v1::FAILURE_CLASS_CORRUPT);
  EXPECT_EQ(FailureOf(absl::InternalError("x")).failure_class(),
            telemetry::v1::FAILURE_CLASS_EXITED);
}

TEST(FailureOfTest, AMachineThatDoesNotAnswerIsNamedByTheRanksThere) {
  const absl::Status status =
      comm::BlameLinks(absl::DeadlineExceededError("no answer"), std::vector<int>{2, 3});
  const agent::v1::RankFailure failure = FailureOf(base::Annotate(status, "join"));
  EXPECT_EQ(failure.failure_class(), telemetry::v1::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(std::vector<int>(failure.unreached_ranks().begin(), failure.unreached_ranks().end()),
            (std::vector<int>{2, 3}));
  const absl::Status late = comm::Blame(absl::DeadlineExceededError("late"), std::vector<int>{2});
  EXPECT_TRUE(FailureOf(late).unreached_ranks().empty()) << "it only has not come";
}

TEST(FailureOfTest, OnlyWhatTheUserGaveIsRefused) {
  for (const absl::StatusCode code : kAllCodes) {
    const bool wrong =
        code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kFailedPrecondition;
    EXPECT_EQ(IsFinal(FailureOfInput(absl::Status(code, "why")).failure_class()), wrong) << code;
    EXPECT_FALSE(IsFinal(FailureOf(absl::Status(code, "why")).failure_class())) << code;
  }
  for (const absl::StatusCode code : kAllCodes) {
    const absl::Status status(code, "why");
    EXPECT_FALSE(IsFinal(FailureOfDevice(status, /*was_there=*/true).failure_class())) << code;
    EXPECT_EQ(FailureOfDevice(status, /*was_there=*/false).failure_class(),
              FailureOfInput(status).failure_class());
  }
  EXPECT_EQ(FailureOf(base::ErrnoStatus(ENETDOWN, "no interface")).failure_class(),
            telemetry::v1::FAILURE_CLASS_EXITED)
      << "the machine's own failure, and no peer's";
  EXPECT_EQ(FailureOfInput(base::ErrnoStatus(ENOTCONN, "data file x")).failure_class(),
            telemetry::v1::FAILURE_CLASS_EXITED)
      << "a system call's FailedPrecondition: storage may be back";
}

}  // namespace
}  // namespace megascale::actors
