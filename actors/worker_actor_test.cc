// Tests of worker_actor.h, and of the persister in checkpoint_actor.h.
#include "actors/worker_actor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "actors/actor_process.h"
#include "actors/checkpoint_actor.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/device/hang.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::actors {
namespace {

using engine::StepResult;
using engine::StopFlag;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A RankEngine that computes nothing. A step ends when both owners have launched it.
class FakeEngine final : public engine::RankEngine {
 public:
  void TellStepEnds(StepEnded step_ended) override { step_ended_ = std::move(step_ended); }
  absl::Status Join() override { return absl::OkStatus(); }
  absl::Status ChooseProducts(const agent::v1::RestorePoint& /*restore*/) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Load(const agent::v1::RestorePoint&) override { return ""; }

  absl::Status Launch(plan::Owner owner, int64_t step) override {
    if (step == refused_step) return absl::FailedPreconditionError("refused");
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (++num_launched_ % plan::kNumOwners != 0) return absl::OkStatus();
    }
    if (step == failing_step) {
      step_ended_(step, failure);
    } else {
      StepResult result;
      result.record.set_step(step);
      result.record.set_loss(1.0 / static_cast<double>(step));
      result.stop = step == stopping_step ? StopFlag::kStop : StopFlag::kNone;
      step_ended_(step, result);
    }
    return absl::OkStatus();
  }

  void TellEvaluationEnds(EvaluationEnded evaluation_ended) override {
    evaluation_ended_ = std::move(evaluation_ended);
  }
  absl::Status Evaluate(int64_t step) override {
    evaluation_ended_(step, evaluation);
    return absl::OkStatus();
  }

  absl::Status BeginSnapshot(int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<int> FinishSnapshot() override { return 0; }
  void RequestStop(StopFlag) override {}
  void Leave() override {}
  void Abort(const absl::Status&) override {}

  absl::StatusOr<std::optional<double>> evaluation = 2.5;
  absl::Status failure = absl::AbortedError("rank 2 is gone");
  int64_t failing_step = -1, refused_step = -1, stopping_step = -1;

 private:
  std::mutex mutex_;
  int num_launched_ = 0;
  StepEnded step_ended_;
  EvaluationEnded evaluation_ended_;
};

struct Ended {
  int exit_code = -1;
  std::vector<link::v1::FromWorker> reports;
};

// Runs a worker's actors until the worker ends its process.
Ended RunWorkerActor(const std::shared_ptr<FakeEngine>& engine, int64_t last_step,
                     int64_t evaluated_step = 0) {
  const auto memory =
      base::SharedMemory::Create("heartbeats", telemetry::HeartbeatBytes(1)).value();
  telemetry::HeartbeatWriter heartbeat(memory.get(), 0);
  Ended ended;
  std::mutex mutex;
  std::promise<int> exit_code;
  bool exited = false;
  WorkerOptions options;
  options.engine = engine;
  options.core = {.attempt = 3, .last_step = last_step};
  options.core.is_evaluated = [=](int64_t step) { return step == evaluated_step; };
  options.heartbeat = &heartbeat;
  options.report = [&](const link::v1::FromWorker& report) {
    const std::lock_guard<std::mutex> lock(mutex);
    ended.reports.push_back(report);
  };
  options.exit = [&](int code) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!std::exchange(exited, true)) exit_code.set_value(code);
  };
  {
    caf::actor_system_config config;
    SetThreads(2, &config);
    caf::actor_system system(config);
    const WorkerActor worker = system.spawn(Worker, std::move(options));
    ended.exit_code = exit_code.get_future().get();
    caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
    engine->TellStepEnds(nullptr);  // it holds a handle of the worker
    engine->TellEvaluationEnds(nullptr);
  }
  return ended;
}

TEST(WorkerActorTest, ReportsTheLossOnHeldOutTextWithItsStepOrTheErrorOfItsEvaluation) {
  const auto engine = std::make_shared<FakeEngine>();
  Ended ended = RunWorkerActor(engine, 3, /*evaluated_step=*/2);
  EXPECT_EQ(ended.exit_code, 0);
  int num_evaluated = 0;
  for (const link::v1::FromWorker& report : ended.reports) {
    if (!report.has_step()) continue;
    EXPECT_EQ(report.step().has_held_out_loss(), report.step().step() == 2);
    num_evaluated += report.step().held_out_loss() == 2.5 ? 1 : 0;
  }
  EXPECT_EQ(num_evaluated, 1);
  engine->evaluation = absl::AbortedError("rank 2 is gone");
  ended = RunWorkerActor(engine, 3, /*evaluated_step=*/2);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.reports.back().failure().message(), HasSubstr("rank 2 is gone"));
}

TEST(WorkerActorTest, ReportsEveryStepOnceWithTheResultThatItEndedWith) {
  const Ended ended = RunWorkerActor(std::make_shared<FakeEngine>(), 20);
  EXPECT_EQ(ended.exit_code, 0);
  std::vector<int64_t> steps;
  for (const link::v1::FromWorker& report : ended.reports) {
    if (!report.has_step()) continue;
    steps.push_back(report.step().step());
    EXPECT_EQ(report.step().loss(), 1.0 / static_cast<double>(report.step().step()));
    EXPECT_EQ(report.step().attempt(), 3);
  }
  ASSERT_EQ(steps.size(), 20u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(i) + 1);
}

TEST(WorkerActorTest, StopsWhereTheResultSaysSo) {
  const auto engine = std::make_shared<FakeEngine>();
  engine->stopping_step = 2;
  const Ended ended = RunWorkerActor(engine, 20);
  EXPECT_EQ(ended.exit_code, 0);
  ASSERT_TRUE(ended.reports.back().has_finished());
  EXPECT_EQ(ended.reports.back().finished().step(), 2);
  EXPECT_TRUE(ended.reports.back().finished().stopped());
}

TEST(WorkerActorTest, AFailedStepAndARefusedLaunchAreReportedOnce) {
  const auto failing = std::make_shared<FakeEngine>();
  failing->failing_step = 2;
  const auto hanging = std::make_shared<FakeEngine>();
  hanging->failing_step = 2;
  hanging->failure = device::AsHang(absl::InternalError("the device hangs"));
  const auto refusing = std::make_shared<FakeEngine>();
  refusing->refused_step = 2;
  for (const auto& [engine, failure] : {std::pair(failing, telemetry::v1::FAILURE_CLASS_ABORTED),
                                        std::pair(hanging, telemetry::v1::FAILURE_CLASS_HUNG),
                                        std::pair(refusing, telemetry::v1::FAILURE_CLASS_EXITED)}) {
    const Ended ended = RunWorkerActor(engine, 20);
    EXPECT_EQ(ended.exit_code, 1);
    ASSERT_EQ(ended.reports.size(), 2u) << "step 1, then the failure";
    EXPECT_EQ(ended.reports[0].step().step(), 1);
    EXPECT_EQ(ended.reports[1].failure().failure_class(), failure);
  }
}

// --- the persister of checkpoint_actor.h -------------------------------------------------------

class PersisterTest : public ::testing::Test {
 protected:
  PersisterTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(base::MakeDirectories(folder_).ok());
    link::v1::HostAssignment& assignment = persister_.options.assignment;
    assignment.set_job_id("job");
    assignment.set_checkpoint_directory(folder_);
    assignment.mutable_spec()->set_device(job::v1::DEVICE_CUDA);
    persister_.options.report = [this](const link::v1::FromHost& message) {
      if (message.has_storage_error()) errors_.push_back(message.storage_error().message());
    };
    persister_.waiting.push_back(WriteCheckpointManifest{kAttempt, kStep});
  }

  // Returns the storage errors of one try.
  std::vector<std::string> Try() {
    errors_.clear();
    const bool is_left = persister_.WorkOff();
    EXPECT_EQ(is_left, !errors_.empty());
    return errors_;
  }

  static constexpr int64_t kAttempt = 1;
  static constexpr int64_t kStep = 4;
  const std::string folder_ = absl::StrCat(
      ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string step_ =
      absl::StrCat(folder_, "/", checkpoint::StepDirectoryName(kStep, kAttempt));
  PersisterState persister_;

 private:
  std::vector<std::string> errors_;
};

TEST_F(PersisterTest, ACheckpointThatWasGivenUpIsNoStorageError) {
  ASSERT_TRUE(checkpoint::KeepProductTable(folder_, "table").ok());
  EXPECT_THAT(Try(), IsEmpty());
  EXPECT_THAT(persister_.waiting, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(step_));
}

TEST_F(PersisterTest, ATableOfProductsThatWasDeletedIsToldAndTriedAgain) {
  ASSERT_TRUE(base::MakeDirectories(step_).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Try(), ElementsAre(HasSubstr(folder_ + "/products.json is missing")));
    EXPECT_FALSE(std::filesystem::exists(absl::StrCat(step_, "/", checkpoint::kManifestFile)));
  }
  ASSERT_TRUE(checkpoint::KeepProductTable(folder_, "table").ok());
  for (const std::string& error : Try()) EXPECT_THAT(error, Not(HasSubstr("products.json")));
  EXPECT_EQ(checkpoint::ReadProductTable(step_).value(), "table");
}

// Neither a deleted nor a changed file ends up in a checkpoint.
TEST_F(PersisterTest, ACheckpointHasTheTableByWhichTheRanksCompute) {
  constexpr size_t kTableBytes = 100;
  const std::shared_ptr<base::SharedMemory> memory =
      base::SharedMemory::Create("rank-0", checkpoint::SnapshotBytes(0, kTableBytes)).value();
  checkpoint::FormatSnapshots(*memory, 0, kTableBytes);
  ASSERT_EQ(checkpoint::KeepTable(*memory, "table"), absl::OkStatus());
  persister_.options.snapshots[0] = memory;
  ASSERT_TRUE(base::MakeDirectories(step_).ok());
  for (const std::string& error : Try()) EXPECT_THAT(error, Not(HasSubstr("products.json")));
  EXPECT_EQ(checkpoint::ReadProductTable(step_).value(), "table");
  ASSERT_TRUE(checkpoint::KeepProductTable(folder_, "another").ok());
  std::filesystem::remove(absl::StrCat(step_, "/", checkpoint::kProductTableFile));
  for (const std::string& error : Try()) EXPECT_THAT(error, Not(HasSubstr("products.json")));
  EXPECT_EQ(checkpoint::ReadProductTable(step_).value(), "table");
}

TEST_F(PersisterTest, AJobOnCpusNeedsNoTable) {
  ASSERT_TRUE(base::MakeDirectories(step_).ok());
  persister_.options.assignment.mutable_spec()->set_device(job::v1::DEVICE_CPU);
  for (const std::string& error : Try()) EXPECT_THAT(error, Not(HasSubstr("products.json")));
}

}  // namespace
}  // namespace megascale::actors
