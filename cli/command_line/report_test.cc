#include "cli/command_line/report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/fd.h"

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

TEST(ReportTest, APathToTypeIsShortAndAShellReadsItBack) {
  const std::filesystem::path here = std::filesystem::current_path();
  const auto below = [&](const std::string& name) { return PathToType((here / name).string()); };
  EXPECT_EQ(below("out/job-1/step-00000010"), "out/job-1/step-00000010");
  EXPECT_EQ(below("weights"), "./weights") << "no name that is looked up on the PATH";
  EXPECT_EQ(below("-out/job"), "./-out/job") << "no option";
  EXPECT_EQ(below("..out/job"), "..out/job");
  EXPECT_EQ(below("my job/x"), "'my job/x'");
  EXPECT_EQ(below("it's/x"), "'it'\\''s/x'");
  EXPECT_EQ(below("ä/$x"), "'ä/$x'");
  EXPECT_EQ(below("ä/x"), "ä/x");
  const std::string above = here.parent_path().string();
  EXPECT_EQ(PathToType(above + "/elsewhere/x"), above + "/elsewhere/x");
  EXPECT_EQ(PathToType("/"), "/");
}

TEST(ReportTest, AProgramToTypeIsTheShortestNameThatAShellFindsHere) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "program-to-type";
  const fs::path built = root / "cache/bin/cli/megascale";
  const fs::path tree = root / "tree";
  fs::remove_all(root);
  fs::create_directories(built.parent_path());
  fs::create_directories(tree);
  const auto make = [](const fs::path& program) {
    std::ofstream(program) << "program";
    fs::permissions(program, fs::perms::owner_all);
  };
  make(built);
  fs::create_directory_symlink(root / "cache/bin", tree / "bazel-bin");  // as Bazel makes it
  const fs::path before = fs::current_path();
  const std::string path = ::getenv("PATH");

  EXPECT_EQ(ProgramToType(built), built) << "elsewhere it has its whole path";
  fs::current_path(tree);
  EXPECT_EQ(ProgramToType(built), "bazel-bin/cli/megascale");
  fs::current_path(root);
  EXPECT_EQ(ProgramToType(built), "cache/bin/cli/megascale");
  ::setenv("PATH", absl::StrCat("/nowhere:", built.parent_path().string()).c_str(), 1);
  EXPECT_EQ(ProgramToType(built), "megascale");
  fs::create_directories(root / "other");
  make(root / "other/megascale");
  ::setenv("PATH", absl::StrCat((root / "other").string(), ":", ::getenv("PATH")).c_str(), 1);
  EXPECT_EQ(ProgramToType(built), "cache/bin/cli/megascale") << "that name is another program's";
  fs::permissions(root / "other/megascale", fs::perms::owner_read);
  EXPECT_EQ(ProgramToType(built), "megascale") << "which nobody can run";
  fs::current_path(built.parent_path());
  ::setenv("PATH", "/nowhere:", 1);
  EXPECT_EQ(ProgramToType(built), "megascale") << "an empty entry is the current folder";

  ::setenv("PATH", path.c_str(), 1);
  fs::current_path(before);
}

TEST(ReportTest, AnInputMayBeAPipeIfSomebodyWritesIntoIt) {
  const std::string pipe = ::testing::TempDir() + "/input";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(OpenInputFile(pipe).status(),
            absl::DeadlineExceededError("is a pipe that no process writes to"));
  const base::UniqueFd writer(::open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  const auto silent = OpenInputFile(pipe);
  ASSERT_TRUE(silent.ok()) << silent.status();
  ASSERT_TRUE(base::WriteAll(writer.get(), "ab").ok());
  const auto opened = OpenInputFile(pipe);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(::fcntl(opened->get(), F_GETFL) & O_NONBLOCK, 0);
  char read[3] = {};
  EXPECT_EQ(::read(opened->get(), read, 2), 2);
  EXPECT_STREQ(read, "ab");
  EXPECT_EQ(OpenInputFile(pipe + "-missing").status().code(), absl::StatusCode::kNotFound);
}

// As a terminal, from which nothing has been typed yet.
TEST(ReportTest, ReadingAnInputWaitsForIt) {
  const auto device = OpenInputFile("/dev/null");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(::fcntl(device->get(), F_GETFL) & O_NONBLOCK, 0);
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

TEST(ReportTest, EachMistakeHasItsLine) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportMistakes(absl::InvalidArgumentError("a:1:1: x\na:2:1: y")), 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "megascale: a:1:1: x\nmegascale: a:2:1: y\n");
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

TEST(ReportTest, NoLineOfATableEndsInSpaces) {
  EXPECT_EQ(FormatTable({{"NODE", "WHY"}, {"n0", ""}, {"", ""}}), "NODE  WHY\nn0\n\n");
}

TEST(ReportTest, ATableFitsItsTerminal) {
  const std::vector<std::vector<std::string>> rows = {
      {"NODE", "STATE", "TESTS", "WHY"},
      {"n0", "alive", "3 passed, at most 1.2 GiB/s, and two others", "it is slow since noon"},
      {"n1", "alive", "-", ""}};
  const std::string whole =
      "NODE  STATE  TESTS                                        WHY\n"
      "n0    alive  3 passed, at most 1.2 GiB/s, and two others  it is slow since noon\n"
      "n1    alive  -\n";
  EXPECT_EQ(FitTable(rows, 0, LongText::kCut), whole);
  EXPECT_EQ(FitTable(rows, 79, LongText::kCut), whole);
  EXPECT_EQ(FitTable(rows, 60, LongText::kWrapped),
            "NODE  STATE  TESTS\n"
            "n0    alive  3 passed, at most 1.2 GiB/s, and two others\n"
            "    why: it is slow since noon\n"
            "n1    alive  -\n");
  EXPECT_EQ(FitTable(rows, 40, LongText::kWrapped),
            "NODE  STATE  TESTS\n"
            "n0    alive  3 passed, at most 1.2\n"
            "               GiB/s, and two others\n"
            "    why: it is slow since noon\n"
            "n1    alive  -\n");
  EXPECT_EQ(FitTable(rows, 24, LongText::kCut),
            "NODE  STATE\n"
            "n0    alive\n"
            "    tests: 3 passed, at…\n"
            "    why: it is slow sin…\n"
            "n1    alive\n");
  const std::string name(30, 'n');  // is to be typed
  EXPECT_EQ(FitTable({{"NODE", "STATE"}, {name, "alive"}}, 20, LongText::kCut),
            absl::StrCat("NODE\n", name, "\n    state: alive\n"));
  EXPECT_EQ(FitTable({{"NODE"}, {"a\x1b[2Jb\nc"}}, 0, LongText::kCut), "NODE\na [2Jb c\n");
}

class OutputFileTest : public ::testing::Test {
 protected:
  OutputFileTest()
      : directory_(absl::StrCat(::testing::TempDir(), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  std::string Read(const std::string& name) const {
    return base::ReadFile(directory_ + "/" + name, 1 << 20).value_or("unreadable");
  }

  const std::string directory_;
};

TEST_F(OutputFileTest, APipeIsWrittenToAndStaysOne) {
  const std::string path = directory_ + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const base::UniqueFd reader(::open(path.c_str(), O_RDWR | O_NONBLOCK));
  ASSERT_TRUE(WriteOutputFile(path, "some data").ok());
  char buffer[64];
  EXPECT_EQ(::read(reader.get(), buffer, sizeof(buffer)), 9);
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

TEST_F(OutputFileTest, WhatALinkLeadsToIsWrittenToAndTheLinkStays) {
  for (const char* target : {"there", "missing"}) {
    const std::string link = absl::StrCat(directory_, "/to-", target);
    std::filesystem::create_symlink(target, link);
    if (std::string(target) == "there") {
      ASSERT_TRUE(WriteOutputFile(directory_ + "/there", "longer than what comes").ok());
    }
    ASSERT_TRUE(WriteOutputFile(link, "short").ok());
    EXPECT_EQ(Read(target), "short");
    EXPECT_TRUE(std::filesystem::is_symlink(link));
  }
}

TEST_F(OutputFileTest, DevicesStayAndAFailureNamesThem) {
  EXPECT_TRUE(WriteOutputFile("/dev/null", "gone").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  const absl::Status full = WriteOutputFile("/dev/full", "too much");
  EXPECT_EQ(full.message().substr(0, 41), "/dev/full: wrote 0 of 8 bytes: disk full;");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(OutputFileTest, AHyphenAndDevStdoutAreStandardOutput) {
  EXPECT_FALSE(IsStandardOutput(""));
  EXPECT_FALSE(IsStandardOutput(directory_ + "/none"));
  for (const char* path : {"-", "/dev/stdout", "/proc/self/fd/1"}) {
    EXPECT_TRUE(IsStandardOutput(path)) << path;
    ::testing::internal::CaptureStdout();
    std::printf("before ");
    const absl::Status written = WriteOutputFile(path, "data");
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "before data") << path << written;
  }
}

}  // namespace
}  // namespace megascale::cli
