#include "cli/report.h"

#include <cmath>

#include "gtest/gtest.h"

namespace megascale::cli {
namespace {

TEST(ReportTest, EveryStatusHasItsExitCode) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::AlreadyExistsError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 4);
}

TEST(ReportTest, JobsExitAsTheyEnded) {
  control::v1::Job job;
  job.set_state(control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(ExitCodeOf(job), 0);
  job.set_state(control::v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(ExitCodeOf(job), 1);
}

TEST(ReportTest, ErrorsAreOneLineAndAdvice) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportError(absl::NotFoundError("no job\nx"), "look at the list"), 4);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "megascale: no job\\nx\n  look at the list\n");
}

TEST(ReportTest, JsonIsValidWhateverTheBytes) {
  JsonObject object;
  object.Add("text", "a\"b\\c\n\xff\xc3\xa4\xed\xa0\x80");
  object.Add("number", 0.1);
  object.Add("nothing", std::nan(""));
  object.Add("count", int64_t{-3});
  EXPECT_EQ(
      object.Finish(),
      "{\"text\": \"a\\\"b\\\\c\\u000a\xEF\xBF\xBD\xc3\xa4\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\", "
      "\"number\": 0.1, \"nothing\": null, \"count\": -3}");
}

TEST(ReportTest, MessagesShowTheirZeros) {
  control::v1::StoredCheckpoint stored;
  stored.set_attempt(2);
  ::testing::internal::CaptureStdout();
  PrintJson(stored, JsonLayout::kOneLine);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "{\"step\":\"0\",\"attempt\":\"2\",\"directory\":\"\",\"age_seconds\":0}\n");
}

TEST(ReportTest, TablesAreAligned) {
  EXPECT_EQ(FormatTable({{"JOB", "STATE", "X"}, {"größer", "ok", "y"}}),
            "JOB     STATE  X\ngrößer  ok     y\n");
}

}  // namespace
}  // namespace megascale::cli
