#include "controlplane/driver/shell/job_logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/shell/testing/shell_test_base.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"

namespace megascale::driver {
namespace {

namespace pb = megascale::driver::v1;
using ::testing::EndsWith;
using ::testing::StartsWith;

// Job "j" of 300 steps.
class JobLogsTest : public ::testing::Test {
 protected:
  JobLogsTest() {
    *record_.mutable_submitted() = Submitted("j", SpecOf(3, 1, 300)).job_submitted();
    record_.mutable_submitted()->set_directory("/state/jobs/j");
    record_.set_stage(pb::STAGE_RUN);
  }

  std::string LoggedAttempts() {
    return driver::LoggedAttempts(record_.submitted().directory(), &disk_);
  }
  bool BeginAttempt(int64_t attempt, int64_t restore_step, double now_seconds) {
    record_.set_attempt(attempt);
    record_.mutable_restore()->set_step(restore_step);
    return logs_->Cut(record_, absl::Seconds(now_seconds));
  }
  // A log that fails is tried again every second.
  void TrySeconds(double first, double last) {
    for (double now = first; now <= last; ++now) logs_->RetryFailed(absl::Seconds(now));
  }
  void Append(int64_t attempt, int64_t first, int64_t last, double now_seconds) {
    google::protobuf::RepeatedPtrField<LossLog::StepRecord> records;
    for (int64_t step = first; step <= last; ++step) {
      LossLog::StepRecord* added = records.Add();
      added->set_step(step);
      added->set_attempt(attempt);
    }
    logs_->Append(record_, records, absl::Seconds(now_seconds));
    logs_->SyncInTurn(absl::Seconds(now_seconds));
  }

  // Appends a step of the first attempt of another job, and makes nothing durable.
  void AppendStep(const std::string& job_id, int64_t step, absl::Duration now) {
    google::protobuf::RepeatedPtrField<LossLog::StepRecord> records;
    records.Add()->set_step(step);
    records.Mutable(0)->set_attempt(1);
    JobRecord job = record_;
    job.mutable_submitted()->set_job_id(job_id);
    job.mutable_submitted()->set_directory(absl::StrCat("/state/jobs/", job_id));
    job.set_attempt(1);
    logs_->Append(job, records, now);
  }

  SimulatedDisk disk_;
  std::unique_ptr<JobLogs> logs_ = std::make_unique<JobLogs>(&disk_);
  JobRecord record_;
};

// Steps of the attempt before come late because the log failed. By then the next attempt may be
// leaving its machines, or may have ended.
TEST_F(JobLogsTest, StepsBeforeTheRestorePointCountInEveryStageOfTheNextAttempt) {
  for (const pb::Stage stage : {pb::STAGE_PREFLIGHT, pb::STAGE_RUN, pb::STAGE_LEAVE, pb::STAGE_STOP,
                                pb::STAGE_FENCE, pb::STAGE_BACKOFF}) {
    disk_ = SimulatedDisk();
    logs_ = std::make_unique<JobLogs>(&disk_);
    record_.set_attempt(2);
    record_.set_stage(stage);
    record_.mutable_restore()->set_step(3);
    Append(1, 1, 5, 0);
    EXPECT_EQ(LoggedAttempts(), "1/1 2/1 3/1") << pb::Stage_Name(stage);
    Append(2, 4, 5, 0);
    EXPECT_EQ(LoggedAttempts(), "1/1 2/1 3/1 4/2 5/2") << pb::Stage_Name(stage);
  }
}

TEST_F(JobLogsTest, ManyLogsAreMadeDurableInTurn) {
  constexpr int kJobs = 500;
  const auto step_of_all = [&](int64_t step, absl::Duration now) {
    for (int i = 0; i < kJobs; ++i) AppendStep(absl::StrCat("job-", i), step, now);
  };
  const auto acknowledged = [&](int64_t step) {
    int count = 0;
    logs_->ForEachAcknowledged(
        [&](const std::string& job_id, int64_t newest) { count += newest == step ? 1 : 0; });
    return count;
  };
  absl::Duration now;
  step_of_all(1, now);
  std::vector<std::string> order = logs_->SyncInTurn(now);
  const auto saved_up = static_cast<int>(order.size());
  EXPECT_EQ(saved_up, 201) << "a second's worth, and one that is due now";
  EXPECT_EQ(acknowledged(1), saved_up);
  logs_->Sync("job-499", now);  // out of turn
  step_of_all(2, now);
  for (int i = 0; i < 40; ++i) {
    now += absl::Milliseconds(100);
    const std::vector<std::string> more = logs_->SyncInTurn(now);
    EXPECT_THAT(more, ::testing::SizeIs(::testing::Le(21)));
    order.insert(order.end(), more.begin(), more.end());
  }
  EXPECT_EQ(acknowledged(2), kJobs) << "none waits for longer than its turn";
  for (int i = 0; i < kJobs; ++i) ASSERT_EQ(order[i], absl::StrCat("job-", i));
}

TEST_F(JobLogsTest, AJobThatIsSyncedOutOfTurnDoesNotHoldUpTheOthers) {
  // Nothing is saved up: one log is synced at a time.
  logs_ = std::make_unique<JobLogs>(&disk_, absl::Seconds(10));
  absl::Duration now;
  AppendStep("j", 1, now);
  logs_->SyncInTurn(now);
  for (int64_t step = 2; step <= 100; ++step) {
    AppendStep("j", step, now);
    logs_->Sync("j", now);
  }
  AppendStep("j", 101, now);
  AppendStep("k", 1, now);
  std::vector<std::string> synced;
  for (int i = 0; i < 2; ++i) {
    now += absl::Seconds(10);
    for (const std::string& job_id : logs_->SyncInTurn(now)) synced.push_back(job_id);
  }
  EXPECT_THAT(synced, ::testing::ElementsAre("j", "k"));
}

// A driver that ended before its turn to sync leaves lines that a loss of power could still take.
TEST_F(JobLogsTest, StepsThatANewDriverAcknowledgesAreDurable) {
  logs_ = std::make_unique<JobLogs>(&disk_, absl::Hours(1));
  ASSERT_TRUE(BeginAttempt(1, 0, 0));
  Append(1, 1, 1, 0);  // this is its turn
  Append(1, 2, 3, 1);
  ASSERT_EQ(logs_->Acknowledged("j"), 1);
  logs_ = std::make_unique<JobLogs>(&disk_);
  ASSERT_NE(logs_->Open(record_, absl::Seconds(2)), nullptr);
  ASSERT_EQ(logs_->Acknowledged("j"), 3);
  disk_.Crash();
  EXPECT_EQ(LoggedAttempts(), "1/1 2/1 3/1");
}

// Its job may be queued or waiting, and the driver may have stood still since the first failure.
TEST_F(JobLogsTest, ALogThatFailsIsTriedAgainWithoutStepsBeforeItIsSetAside) {
  ASSERT_TRUE(BeginAttempt(1, 0, 0));
  disk_.FailOn("sync ");
  Append(1, 1, 2, 1);
  for (const double seconds : {2.0, 40.0}) {
    EXPECT_THAT(logs_->RetryFailed(absl::Seconds(seconds)), ::testing::IsEmpty());
    EXPECT_THAT(logs_->WarningOf("j"), ::testing::HasSubstr("tried again every second"));
  }
  disk_.FailOn("");
  EXPECT_THAT(logs_->RetryFailed(absl::Seconds(42)), ::testing::ElementsAre("j"));
  EXPECT_EQ(logs_->WarningOf("j"), "");
  disk_.FailOn("sync ");
  Append(1, 1, 2, 43);
  TrySeconds(44, 74);
  EXPECT_THAT(logs_->WarningOf("j"), ::testing::HasSubstr("the job goes on without it"));
}

// No further step is lost with the damaged lines, and readers get none twice, whatever fails.
TEST_F(JobLogsTest, ACutOfADamagedLogThatFailsIsRepeatedWithoutALoss) {
  const std::string path = "/state/jobs/j/metrics.jsonl";
  for (const char* effect : {"write ", "cut ", "append to ", "sync ", "open ", "nothing"}) {
    for (const size_t begin : {size_t{0}, size_t{250}, size_t{420}}) {
      for (const bool ends : {false, true}) {
        SCOPED_TRACE(absl::StrCat(effect, begin, ends ? ", the driver ends" : ""));
        disk_ = SimulatedDisk();
        logs_ = std::make_unique<JobLogs>(&disk_);
        ASSERT_TRUE(BeginAttempt(1, 0, 0));
        Append(1, 1, 9, 0);
        int64_t position = 0;
        ASSERT_EQ(logs_->Find("j")->Since(&position).size(), 9);
        disk_.Corrupt(path, begin, std::string(30, '\n'));
        disk_.FailOn(effect);
        BeginAttempt(2, 5, 1);
        disk_.FailOn("");
        if (ends) {
          disk_.Crash();
          logs_ = std::make_unique<JobLogs>(&disk_);
        }
        EXPECT_TRUE(BeginAttempt(2, 5, 3));
        EXPECT_EQ(logs_->Acknowledged("j"), 5);
        Append(2, 6, 8, 3);
        EXPECT_THAT(LoggedAttempts(), EndsWith("5/1 6/2 7/2 8/2"));
        if (ends) continue;
        const auto news = logs_->Find("j")->Since(&position);
        ASSERT_EQ(news.size(), 3);
        EXPECT_EQ(news[0].step(), 6);
      }
    }
  }
}

// The driver before had cut the log, and this one does not know it.
TEST_F(JobLogsTest, ACutThatIsDueAgainTakesNoStepsOfItsAttempt) {
  ASSERT_TRUE(BeginAttempt(2, 0, 0));
  Append(2, 1, 6, 0);
  for (const double patience : {0.0, 31.0}) {
    logs_ = std::make_unique<JobLogs>(&disk_);
    disk_.FailOn("metrics");
    EXPECT_FALSE(BeginAttempt(2, 0, 0));
    TrySeconds(0, patience - 1);
    EXPECT_EQ(BeginAttempt(2, 0, patience), patience > 30);
    EXPECT_EQ(BeginAttempt(3, 4, patience + 0.5), patience > 30);
    disk_.FailOn("");
    EXPECT_TRUE(BeginAttempt(3, 4, patience + 100));
    EXPECT_EQ(LoggedAttempts(), "1/2 2/2 3/2 4/2") << patience;
  }
}

TEST_F(JobLogsTest, ACutThatIsDueIsNotForgottenForTheNextOne) {
  ASSERT_TRUE(BeginAttempt(1, 0, 0));
  Append(1, 1, 6, 0);
  disk_.FailOn("metrics");
  EXPECT_FALSE(BeginAttempt(2, 2, 1));
  EXPECT_FALSE(BeginAttempt(3, 4, 3));
  EXPECT_EQ(logs_->Acknowledged("j"), 2);
  disk_.FailOn("");
  EXPECT_TRUE(BeginAttempt(3, 4, 5));
  EXPECT_EQ(logs_->WarningOf("j"), "") << "what was cut is not lost";
  Append(2, 3, 4, 5);
  Append(3, 5, 6, 5);
  EXPECT_EQ(LoggedAttempts(), "1/1 2/1 3/2 4/2 5/3 6/3");
  EXPECT_EQ(logs_->Acknowledged("j"), 6);
}

TEST_F(JobLogsTest, ALogThatIsSetAsideLacksTheStepsOfAnAttemptAndKeepsNoneThatWereRolledBack) {
  ASSERT_TRUE(BeginAttempt(1, 0, 0));
  Append(1, 1, 6, 0);
  disk_.FailOn("metrics");
  EXPECT_FALSE(BeginAttempt(2, 2, 1));
  TrySeconds(1, 31);
  EXPECT_TRUE(BeginAttempt(2, 2, 32)) << "it is set aside";
  Append(2, 3, 10, 32);
  EXPECT_EQ(logs_->Acknowledged("j"), 10);
  EXPECT_TRUE(BeginAttempt(3, 8, 40));
  EXPECT_EQ(logs_->Acknowledged("j"), 8);
  disk_.FailOn("");
  Append(3, 9, 10, 200);
  EXPECT_EQ(LoggedAttempts(), "1/1 2/1 9/3 10/3");
}

// Somebody makes room on a full disk.
TEST_F(JobLogsTest, ADeletedLogIsMadeAnewAlthoughAnErrorShowsItFirst) {
  ASSERT_TRUE(BeginAttempt(1, 0, 0));
  const std::string path = "/state/jobs/j/metrics.jsonl";
  std::string expected;
  int64_t step = 0;
  for (const char* effect : {"append to ", "sync ", "open "}) {
    const double now = 10 * static_cast<double>(step + 1);
    Append(1, step + 1, step + 3, now);
    disk_.DeleteFile(path);
    disk_.FailOn(effect + path);
    Append(1, step + 4, step + 4, now + 5);
    EXPECT_THAT(logs_->WarningOf("j"), StartsWith("its loss log cannot be used: ")) << effect;
    disk_.FailOn("");
    Append(1, step + 4, step + 5, now + 7);
    for (int i = 0; i < 5; ++i)
      absl::StrAppend(&expected, expected.empty() ? "" : " ", ++step, "/1");
    EXPECT_EQ(LoggedAttempts(), expected) << effect;
    EXPECT_THAT(logs_->WarningOf("j"), StartsWith(path + " was deleted or moved")) << effect;
  }
  disk_.DeleteFile(path);
  disk_.FailOn("sync " + path);
  logs_->Finish("j", absl::Seconds(500));
  logs_->Forget("j");
  disk_.FailOn("");
  logs_->RetryFailed(absl::Seconds(502));
  disk_.Crash();
  EXPECT_EQ(LoggedAttempts(), expected) << "the job has ended, and the driver goes on trying";
}

TEST_F(JobLogsTest, StepsOfADeletedLogThatWereNotInMemoryAreNamed) {
  ASSERT_TRUE(BeginAttempt(1, 0, 0));
  record_.mutable_submitted()->mutable_spec()->mutable_train()->set_steps(2000);
  Append(1, 1, 1100, 0);
  disk_.DeleteFile("/state/jobs/j/metrics.jsonl");
  disk_.FailOn("append to ");
  Append(1, 1101, 1101, 5);
  disk_.FailOn("");
  Append(1, 1101, 1101, 7);
  EXPECT_THAT(logs_->WarningOf("j"), EndsWith("; the steps before step 77 were lost"));
}

}  // namespace
}  // namespace megascale::driver
