#include "controlplane/driver/storage/loss_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "runtime/base/fd.h"

namespace megascale::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LossLogTest : public ::testing::Test {
 protected:
  LossLogTest()
      : directory_(::testing::TempDir() + "/" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name()) {}

  std::unique_ptr<LossLog> Open() {
    auto log = LossLog::Open(directory_, &RealJobFiles());
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static LossLog::StepRecord Record(int64_t step, int64_t attempt) {
    LossLog::StepRecord record;
    record.set_step(step);
    record.set_attempt(attempt);
    record.set_loss(0.1 + 1.0 / static_cast<double>(step));
    record.set_tokens(512);
    return record;
  }
  static void Add(LossLog* log, int64_t first, int64_t last, int64_t attempt) {
    for (int64_t step = first; step <= last; ++step) {
      ASSERT_TRUE(log->Append(Record(step, attempt)).ok());
    }
    ASSERT_TRUE(log->Sync().ok());
  }
  std::string Text(const std::string& file) const {
    return base::ReadFile(directory_ + "/" + file, 1 << 20).value_or("");
  }
  // "1/1 2/1 3/2": step and attempt of each line.
  static std::string Steps(const LossLog& log) {
    std::string steps;
    for (const auto& record : log.recent()) {
      steps += (steps.empty() ? "" : " ") + std::to_string(record.step()) + "/" +
               std::to_string(record.attempt());
    }
    return steps;
  }

  const std::string directory_;
};

TEST_F(LossLogTest, EachStepStandsOnceHoweverOftenItIsReported) {
  const auto log = Open();
  Add(log.get(), 1, 3, 1);
  Add(log.get(), 2, 4, 1);
  Add(log.get(), 6, 7, 1);  // 5 was not reported yet
  EXPECT_EQ(Steps(*log), "1/1 2/1 3/1 4/1");
  EXPECT_EQ(log->synced_step(), 4);
}

TEST_F(LossLogTest, AcknowledgesOnlyWhatIsSynced) {
  const auto log = Open();
  ASSERT_TRUE(log->Append(Record(1, 1)).ok());
  EXPECT_EQ(log->last_step(), 1);
  EXPECT_EQ(log->synced_step(), 0);
}

TEST_F(LossLogTest, ReopeningGivesTheSameBits) {
  Add(Open().get(), 1, 50, 1);
  const auto log = Open();
  ASSERT_THAT(log->recent(), SizeIs(50));
  for (const auto& record : log->recent()) {
    EXPECT_EQ(record.SerializeAsString(), Record(record.step(), 1).SerializeAsString());
  }
  EXPECT_EQ(log->synced_step(), 50);
}

TEST_F(LossLogTest, TornLastLineIsRepaired) {
  Add(Open().get(), 1, 3, 1);
  std::ofstream(directory_ + "/metrics.jsonl", std::ios::app) << R"({"step":4,"loss":1.)";
  const auto log = Open();
  EXPECT_EQ(log->last_step(), 3);
  Add(log.get(), 4, 4, 1);
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/1 4/1");
}

TEST_F(LossLogTest, LinesThatAreNoRecordsAreSkippedWhereverTheyAre) {
  Add(Open().get(), 1, 3, 1);
  std::ofstream(directory_ + "/metrics.jsonl", std::ios::app)
      << "what\n"
      << R"({"step":2,"loss":1,"grad_norm":1,"lr":1,"tokens":1,"seconds":1,"attempt":1})"
      << "\n"
      << std::string(100, '\0') << "\n";
  const auto log = Open();
  EXPECT_EQ(Steps(*log), "1/1 2/1 3/1");
  Add(log.get(), 4, 6, 1);
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/1 4/1 5/1 6/1");
  ASSERT_TRUE(log->CutTo(4, 2).ok());
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/1 4/1");
}

// Counts what is read.
class CountingFiles : public JobFiles {
 public:
  absl::StatusOr<std::unique_ptr<AppendedFile>> OpenAppended(const std::string& path) override {
    return RealJobFiles().OpenAppended(path);
  }
  absl::StatusOr<size_t> Size(const std::string& path) override {
    return RealJobFiles().Size(path);
  }
  absl::StatusOr<std::string> ReadAt(const std::string& path, size_t offset,
                                     size_t size_bytes) override {
    num_bytes += size_bytes;
    return RealJobFiles().ReadAt(path, offset, size_bytes);
  }
  absl::Status WriteDurably(const std::string& path, absl::string_view data) override {
    return RealJobFiles().WriteDurably(path, data);
  }
  absl::Status WriteSoon(const std::string& path, absl::string_view data) override {
    return RealJobFiles().WriteSoon(path, data);
  }
  bool Exists(const std::string& path) override { return RealJobFiles().Exists(path); }

  size_t num_bytes = 0;
};

TEST_F(LossLogTest, ReadsOnlyTheEndOfALongFile) {
  constexpr int64_t kSteps = 100'000;  // 10 MiB
  Add(Open().get(), 1, kSteps, 1);
  CountingFiles files;
  const auto log = *LossLog::Open(directory_, &files);
  EXPECT_EQ(log->last_step(), kSteps);
  EXPECT_THAT(log->recent(), SizeIs(LossLog::kRecentMax));
  ASSERT_TRUE(log->CutTo(kSteps - 5000, 2).ok());
  EXPECT_EQ(log->last_step(), kSteps - 5000);
  EXPECT_THAT(log->recent(), SizeIs(LossLog::kRecentMax));
  EXPECT_LT(files.num_bytes, size_t{4} << 20);
  EXPECT_EQ(Open()->last_step(), kSteps - 5000);
  EXPECT_THAT(Text("metrics.attempt-1.jsonl"), HasSubstr(R"({"step":95001,)"));
}

TEST_F(LossLogTest, WhatAFailedSyncLeftIsDroppedAndTakenAgain) {
  const auto log = Open();
  Add(log.get(), 1, 5, 1);
  ASSERT_TRUE(log->DropAfter(3).ok());
  EXPECT_EQ(log->synced_step(), 3);
  Add(log.get(), 4, 4, 1);
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/1 4/1");
}

TEST_F(LossLogTest, RollbackCutsAndKeepsWhatItCut) {
  const auto log = Open();
  Add(log.get(), 1, 5, 1);
  ASSERT_TRUE(log->CutTo(3, 2).ok());
  EXPECT_EQ(Steps(*log), "1/1 2/1 3/1");
  EXPECT_THAT(Text("metrics.attempt-1.jsonl"), HasSubstr(R"({"step":4,)"));
  EXPECT_THAT(Text("metrics.attempt-1.jsonl"), HasSubstr(R"({"step":5,)"));
  Add(log.get(), 4, 6, 2);
  // Repeating the cut after a restart of the driver keeps the new attempt's steps.
  const auto again = Open();
  ASSERT_TRUE(again->CutTo(3, 2).ok());
  EXPECT_EQ(Steps(*again), "1/1 2/1 3/1 4/2 5/2 6/2");
}

TEST_F(LossLogTest, RollbackToTheBeginning) {
  const auto log = Open();
  Add(log.get(), 1, 5, 1);
  ASSERT_TRUE(log->CutTo(0, 2).ok());
  Add(log.get(), 2, 2, 2);
  EXPECT_EQ(Steps(*log), "");
  Add(log.get(), 1, 2, 2);
  EXPECT_EQ(Steps(*log), "1/2 2/2");
}

TEST_F(LossLogTest, GoesOnBehindStepsThatWereNeverReported) {
  const auto log = Open();
  Add(log.get(), 1, 2, 1);
  ASSERT_TRUE(log->CutTo(10, 2).ok());
  Add(log.get(), 11, 12, 2);
  EXPECT_EQ(Steps(*log), "1/1 2/1") << "another agent may have them";
  log->GoOnAt(11);
  Add(log.get(), 11, 12, 2);
  EXPECT_EQ(Steps(*log), "1/1 2/1 11/2 12/2");
}

TEST_F(LossLogTest, ContinuesFromACheckpointAtItsStep) {
  const auto log = Open();
  Add(log.get(), 21, 22, 1);
  EXPECT_EQ(Steps(*log), "21/1 22/1");
}

TEST_F(LossLogTest, WatchersGetEachStepOnce) {
  const auto log = Open();
  Add(log.get(), 1, 5, 1);
  int64_t position = -1;
  EXPECT_THAT(log->Since(&position), SizeIs(0));
  Add(log.get(), 6, 8, 1);
  EXPECT_THAT(log->Since(&position), SizeIs(3));
  EXPECT_THAT(log->Since(&position), SizeIs(0));
  ASSERT_TRUE(log->CutTo(7, 2).ok());
  EXPECT_THAT(log->Since(&position), SizeIs(0));
  Add(log.get(), 8, 9, 2);
  const auto steps = log->Since(&position);
  ASSERT_THAT(steps, SizeIs(2));
  EXPECT_EQ(steps[0].attempt(), 2);
}

TEST_F(LossLogTest, ValueThatIsNoNumberIsKept) {
  {
    const auto log = Open();
    LossLog::StepRecord record = Record(1, 1);
    record.set_loss(std::numeric_limits<double>::quiet_NaN());
    ASSERT_TRUE(log->Append(record).ok());
  }
  EXPECT_TRUE(std::isnan(Open()->recent().back().loss()));
}

}  // namespace
}  // namespace megascale::driver
