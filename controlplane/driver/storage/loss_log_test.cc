#include "controlplane/driver/storage/loss_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/storage/loss_history.h"
#include "controlplane/driver/storage/loss_line.h"
#include "controlplane/driver/storage/tensorboard_log.h"
#include "proto/tensorboard.pb.h"
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

TEST_F(LossLogTest, TheLossOnHeldOutTextStandsInItsStepsLineAlone) {
  telemetry::v1::StepRecord record;
  record.set_step(1);
  EXPECT_EQ(ToLossLine(record).find("held_out"), std::string::npos);
  EXPECT_FALSE(FromLossLine(ToLossLine(record))->has_held_out_loss());
  record.set_held_out_loss(1.0 / 3);
  EXPECT_EQ(FromLossLine(ToLossLine(record))->held_out_loss(), 1.0 / 3);
  const auto log = Open();
  ASSERT_TRUE(log->Append(record).ok());
  Add(log.get(), 2, 4, 1);
  ASSERT_NE(log->recent().newest_evaluated(), nullptr);
  EXPECT_EQ(log->recent().newest_evaluated()->step(), 1);
  ASSERT_TRUE(log->CutTo(0, 2).ok());
  EXPECT_EQ(log->recent().newest_evaluated(), nullptr) << "the step was rolled back";
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

TEST_F(LossLogTest, AFileThatWasDeletedIsMadeAnewWithTheStepsInMemory) {
  const auto log = Open();
  Add(log.get(), 1, 3, 1);
  EXPECT_EQ(*log->Mend(), "");
  const std::string before = Text("metrics.jsonl");
  for (const char* how : {"rm", "rm -r", "mv"}) {
    const std::string path = directory_ + "/metrics.jsonl";
    if (how == std::string("mv")) {
      std::filesystem::rename(path, path + ".old");
    } else {
      std::filesystem::remove_all(how == std::string("rm") ? path : directory_);
    }
    EXPECT_THAT(*log->Mend(), HasSubstr("metrics.jsonl was deleted or moved while")) << how;
    EXPECT_EQ(Text("metrics.jsonl"), before) << how;
    EXPECT_EQ(*log->Mend(), "") << how;
  }
  Add(log.get(), 4, 5, 1);
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/1 4/1 5/1");
}

TEST_F(LossLogTest, AFileThatAnOlderCopyReplacedGetsTheStepsThatItLacks) {
  const auto log = Open();
  Add(log.get(), 1, 2, 1);
  std::filesystem::copy(directory_ + "/metrics.jsonl", directory_ + "/copy");
  Add(log.get(), 3, 4, 1);
  std::filesystem::rename(directory_ + "/copy", directory_ + "/metrics.jsonl");
  EXPECT_THAT(*log->Mend(), HasSubstr("metrics.jsonl was replaced or damaged while"));
  Add(log.get(), 5, 5, 1);
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/1 4/1 5/1");
}

TEST_F(LossLogTest, StepsBehindAGapArePutBackToo) {
  const auto log = Open();
  Add(log.get(), 1, 2, 1);
  log->GoOnAt(11);
  Add(log.get(), 11, 12, 1);
  std::filesystem::remove(directory_ + "/metrics.jsonl");
  EXPECT_THAT(*log->Mend(), HasSubstr("from step 1 on"));
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 11/1 12/1");
}

TEST_F(LossLogTest, ACopyFromBeforeARollbackHasNoStepTwice) {
  const auto log = Open();
  Add(log.get(), 1, 5, 1);
  std::filesystem::copy(directory_ + "/metrics.jsonl", directory_ + "/copy");
  ASSERT_TRUE(log->CutTo(2, 2).ok());
  Add(log.get(), 3, 4, 2);
  std::filesystem::rename(directory_ + "/copy", directory_ + "/metrics.jsonl");
  EXPECT_THAT(*log->Mend(), HasSubstr("was replaced"));
  Add(log.get(), 5, 5, 2);
  EXPECT_EQ(Steps(*log), "1/1 2/1 3/2 4/2 5/2");
  EXPECT_EQ(Steps(*Open()), "1/1 2/1 3/2 4/2 5/2");
}

TEST_F(LossLogTest, StepsThatWereNotInMemoryAreSaidToBeLost) {
  const auto log = Open();
  Add(log.get(), 1, 10, 1);
  std::filesystem::copy(directory_ + "/metrics.jsonl", directory_ + "/copy");
  Add(log.get(), 11, 1100, 1);
  std::filesystem::rename(directory_ + "/copy", directory_ + "/metrics.jsonl");
  EXPECT_THAT(*log->Mend(), HasSubstr("from step 77 on; the steps from 11 to 76 were lost"));
  std::filesystem::remove(directory_ + "/metrics.jsonl");
  EXPECT_THAT(*log->Mend(), HasSubstr("from step 77 on; the steps before step 77 were lost"));
  EXPECT_EQ(Open()->recent().front().step(), 77);
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

// What is kept must not be lost with the lines of a damaged file, and what is cut must not count.
TEST_F(LossLogTest, RollbackOfALogWhoseLinesWereDamagedKeepsTheStepsInMemory) {
  const std::string path = directory_ + "/metrics.jsonl";
  const auto damages = {
      +[](std::string text) { return text.substr(0, text.find("{\"step\":3,")); },
      +[](std::string text) { return text.substr(0, text.find("{\"step\":6,") + 5); },
      +[](std::string text) { return text.replace(text.find("{\"step\":4,"), 3, "\n\n\n"); },
      +[](std::string text) { return std::string(text.size(), '\0'); },
  };
  for (const auto damage : damages) {
    std::filesystem::remove_all(directory_);
    const auto log = Open();
    Add(log.get(), 1, 9, 1);
    int64_t position = 0;
    EXPECT_THAT(log->Since(&position), SizeIs(9));
    const std::string damaged = damage(Text("metrics.jsonl"));
    // In place: the log stays at its path.
    std::ofstream(path, std::ios::in | std::ios::out) << damaged;
    std::filesystem::resize_file(path, damaged.size());
    ASSERT_TRUE(log->IsAtItsPath());
    ASSERT_TRUE(log->CutTo(5, 2).ok());
    EXPECT_EQ(Steps(*log), "1/1 2/1 3/1 4/1 5/1");
    EXPECT_EQ(log->synced_step(), 5);
    Add(log.get(), 3, 7, 2);
    const auto news = log->Since(&position);
    ASSERT_THAT(news, SizeIs(2));
    EXPECT_EQ(news[0].step(), 6);
    EXPECT_EQ(Steps(*log), "1/1 2/1 3/1 4/1 5/1 6/2 7/2");
    const bool has_hole = damaged.find("\n\n\n") != std::string::npos;  // it stays in the file
    EXPECT_EQ(Steps(*Open()), has_hole ? "1/1 2/1 3/1 5/1 6/2 7/2" : "1/1 2/1 3/1 4/1 5/1 6/2 7/2");
  }
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

TEST_F(LossLogTest, ASlowWatcherGetsTheStepsThatARollbackKept) {
  const auto log = Open();
  const auto since = [&](int64_t* position) {
    std::string steps;
    for (const auto& record : log->Since(position)) {
      absl::StrAppend(&steps, steps.empty() ? "" : " ", record.step(), "/", record.attempt());
    }
    return steps;
  };
  int64_t slow = 0;
  int64_t slower = 0;
  Add(log.get(), 1, 3, 1);
  EXPECT_EQ(since(&slow), "1/1 2/1 3/1");
  slower = slow;
  Add(log.get(), 4, 8, 1);
  int64_t prompt = slow;
  EXPECT_EQ(since(&prompt), "4/1 5/1 6/1 7/1 8/1");
  ASSERT_TRUE(log->CutTo(6, 2).ok());
  int64_t early = slow;
  EXPECT_EQ(since(&early), "4/1 5/1 6/1");
  ASSERT_TRUE(log->CutTo(6, 2).ok()) << "nothing is left to cut";
  Add(log.get(), 7, 9, 2);
  EXPECT_EQ(since(&slow), "4/1 5/1 6/1 7/2 8/2 9/2");
  EXPECT_EQ(since(&prompt), "7/2 8/2 9/2");
  EXPECT_EQ(since(&early), "7/2 8/2 9/2");
  ASSERT_TRUE(log->CutTo(2, 3).ok());
  Add(log.get(), 3, 4, 3);
  EXPECT_EQ(since(&slow), "3/3 4/3");
  EXPECT_EQ(since(&slower), "3/3 4/3");
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

// --- parts of it for people -------------------------------------------------------------------

TEST_F(LossLogTest, AnyPartIsFoundWithoutReadingTheWholeFile) {
  const auto log = Open();
  Add(log.get(), 1, 5000, 1);
  for (const int64_t first : {0, 1, 2, 777, 2500, 4999, 5000}) {
    const auto steps = ReadSteps(directory_, &RealJobFiles(), first, 3);
    ASSERT_TRUE(steps.ok()) << steps.status();
    ASSERT_FALSE(steps->empty());
    EXPECT_EQ(steps->front().step(), std::max<int64_t>(1, first));
    EXPECT_EQ(steps->size(), std::min<int64_t>(3, 5001 - steps->front().step()));
  }
  EXPECT_THAT(*ReadSteps(directory_, &RealJobFiles(), 5001, 3), SizeIs(0));
  EXPECT_THAT(*ReadSteps(directory_, &RealJobFiles(), 0, 100'000), SizeIs(5000));
  EXPECT_THAT(*ReadSteps(directory_ + "-none", &RealJobFiles(), 0, 3), SizeIs(0));
}

TEST_F(LossLogTest, ALineThatIsStillWrittenAndLinesThatAreNoRecordsAreLeftOut) {
  {
    const auto log = Open();
    Add(log.get(), 1, 3, 1);
  }
  std::ofstream(directory_ + "/metrics.jsonl", std::ios::app) << "no record\n{\"step\": 4, \"lo";
  EXPECT_THAT(*ReadSteps(directory_, &RealJobFiles(), 0, 10), SizeIs(3));
  EXPECT_THAT(*SampleSteps(directory_, &RealJobFiles(), 10), SizeIs(3));
}

TEST_F(LossLogTest, ASampleIsSpreadEvenlyAndHasBothEnds) {
  const auto log = Open();
  Add(log.get(), 1, 5000, 1);
  for (const int64_t points : {2, 10, 100, 1000}) {
    const auto steps = SampleSteps(directory_, &RealJobFiles(), points);
    ASSERT_TRUE(steps.ok()) << steps.status();
    EXPECT_LE(steps->size(), static_cast<size_t>(points) + 1);
    EXPECT_GE(steps->size(), static_cast<size_t>(points) * 9 / 10);
    EXPECT_EQ(steps->front().step(), 1);
    EXPECT_EQ(steps->back().step(), 5000);
    for (size_t i = 1; i < steps->size(); ++i) {
      EXPECT_LT((*steps)[i - 1].step(), (*steps)[i].step());
      EXPECT_LE((*steps)[i].step() - (*steps)[i - 1].step(), 5000 / (points - 1) + 10);
    }
  }
}

// --- TensorBoard ------------------------------------------------------------------------------

// Returns "step" for each event with a loss, "step:loss" with a loss on held-out text, the version
// and "start:step" for the others.
std::vector<std::string> EventsIn(const std::string& text) {
  std::vector<std::string> events;
  for (size_t at = 0; at < text.size();) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(text[at + i]);
    const std::string data = text.substr(at + 12, length);
    EXPECT_EQ(text.substr(at, 16 + length), EventRecord(data)) << "the frame of " << data;
    at += 16 + length;
    megascale::tensorboard::v1::Event event;
    EXPECT_TRUE(event.ParseFromString(data));
    if (event.has_session_log()) {
      events.push_back(absl::StrCat("start:", event.step()));
    } else if (event.has_summary()) {
      EXPECT_EQ(event.summary().value(0).tag(), "train/loss");
      std::string held_out;
      for (const auto& value : event.summary().value()) {
        if (value.tag() == "held_out/loss") held_out = absl::StrCat(":", value.simple_value());
      }
      events.push_back(absl::StrCat(event.step(), held_out));
    } else {
      events.push_back(event.file_version());
    }
  }
  return events;
}

TEST_F(LossLogTest, TensorBoardGetsEachStepAndForgetsWhatIsComputedAgain) {
  const auto log = Open();
  TensorBoardLogs tensorboard(&RealJobFiles());
  const auto follow = [&] {
    tensorboard.Follow("j", directory_, *log, absl::FromUnixSeconds(1'700'000'000));
  };
  follow();  // no step, no file
  Add(log.get(), 1, 2, 1);
  follow();
  Add(log.get(), 3, 4, 1);
  follow();
  follow();
  ASSERT_TRUE(log->CutTo(2, 2).ok());
  Add(log.get(), 3, 5, 2);
  follow();
  const std::string text = Text("tensorboard/events.out.tfevents.1700000000.megascale");
  EXPECT_THAT(EventsIn(text), ::testing::ElementsAre("brain.Event:2", "start:1", "1", "2", "3", "4",
                                                     "start:3", "3", "4", "5"));
}

TEST_F(LossLogTest, TensorBoardGetsTheLossOnHeldOutTextOfStepsThatAreEvaluated) {
  const auto log = Open();
  for (int64_t step = 1; step <= 3; ++step) {
    LossLog::StepRecord record = Record(step, 1);
    if (step == 2) record.set_held_out_loss(1.75);
    ASSERT_TRUE(log->Append(record).ok());
  }
  TensorBoardLogs tensorboard(&RealJobFiles());
  tensorboard.Follow("j", directory_, *log, absl::FromUnixSeconds(1'700'000'000));
  const std::string text = Text("tensorboard/events.out.tfevents.1700000000.megascale");
  EXPECT_THAT(EventsIn(text),
              ::testing::ElementsAre("brain.Event:2", "start:1", "1", "2:1.75", "3"));
}

// The checksums are those that TensorBoard computes for these bytes.
TEST(EventRecordTest, HasTheFrameThatTensorBoardReads) {
  const std::string length("\x09\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(EventRecord("123456789"),
            length + "\x37\xf9\x71\x39" + "123456789" + "\xe5\xb0\x8a\xc7");
}

}  // namespace
}  // namespace megascale::driver
