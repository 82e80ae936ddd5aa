// The program from the outside: what it exits with and prints where no driver is needed.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace {

struct Outcome {
  int code = -1;
  std::string out;  // standard output
  std::string error;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    text_ = directory_ + "/text.txt";
    std::ofstream(text_) << std::string(5000, 'a');
  }

  // Runs `megascale <words>`; `words` is for the shell.
  Outcome Run(const std::string& words) {
    const std::string command = absl::StrCat("timeout 60 cli/megascale ", words, " >", directory_,
                                             "/out 2>", directory_, "/error");
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), ReadAll(directory_ + "/out"), ReadAll(directory_ + "/error")};
  }

  std::string directory_;
  std::string text_;
};

TEST_F(ProgramTest, MisspeltWordsAreAnsweredWithTheNearest) {
  const Outcome command = Run("sumbit");
  EXPECT_EQ(command.code, 2);
  EXPECT_EQ(
      command.error,
      "megascale: unknown command 'sumbit'; did you mean 'submit'?\n  see: megascale --help\n");
  const Outcome option = Run("status --adress x");
  EXPECT_EQ(option.code, 2);
  EXPECT_EQ(option.error,
            "megascale: unknown option '--adress'; did you mean '--address'?\n  see: megascale "
            "status --help\n");
  EXPECT_EQ(Run("list -o xml").error, "megascale: --output: expected text or json, found 'xml'\n");
  EXPECT_EQ(Run("").code, 2);
}

TEST_F(ProgramTest, EveryCommandHasHelpWithExamples) {
  for (const char* command :
       {"driver", "agent", "submit", "status", "wait", "list", "logs", "watch", "cancel", "local",
        "generate", "evaluate", "checkpoint list", "checkpoint inspect", "checkpoint digest",
        "checkpoint verify", "version"}) {
    const Outcome help = Run(absl::StrCat(command, " --help"));
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_TRUE(absl::StrContains(help.out, "Examples:\n  megascale ")) << command << help.out;
    EXPECT_EQ(help.error, "") << command;
  }
  const Outcome help = Run("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_FALSE(absl::StrContains(help.out, "worker  "));
}

TEST_F(ProgramTest, BadJobFilesAreUsageErrors) {
  const std::string file = directory_ + "/job.yaml";
  std::ofstream(file) << "name: x\nmodel:\n  hiden_size: 3\n";
  const Outcome unknown = Run("submit " + file);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.error,
            absl::StrCat("megascale: ", file,
                         ":3: `model.hiden_size` is not a field; did you mean `hidden_size`?\n"));
  const Outcome sum = Run("submit examples/tiny.yaml --set train.global_batch_size=9");
  EXPECT_EQ(sum.code, 2);
  EXPECT_EQ(sum.error,
            "megascale: examples/tiny.yaml: train.global_batch_size: 9 is not a multiple of "
            "data_parallel_size × micro_batch_size = 2 × 2 = 4\n");
  EXPECT_EQ(Run("submit nowhere.yaml").code, 2);
}

TEST_F(ProgramTest, DryRunShowsTheResolvedJob) {
  int examples = 0;
  for (const auto& file : std::filesystem::directory_iterator("examples")) {
    if (file.path().extension() != ".yaml") continue;
    ++examples;
    const Outcome dry = Run("submit --dry-run " + file.path().string());
    EXPECT_EQ(dry.code, 0) << dry.error;
    const std::string name = file.path().stem().string();
    EXPECT_TRUE(absl::StrContains(dry.out, absl::StrCat("name: ", name, "\n"))) << dry.out;
    EXPECT_TRUE(absl::StrContains(dry.out, "heartbeat_timeout: 5s\n"));
  }
  EXPECT_GE(examples, 7);
  EXPECT_TRUE(absl::StrContains(Run("submit --dry-run examples/tiny.yaml").out,
                                "needs 4 slots: data 2 x pipeline 2; "));
  const Outcome memory = Run("submit --dry-run --slots 2 examples/tiny.yaml");
  for (const char* part : {"\n# RANK ", " WEIGHTS ", " ACTIVATIONS ", "\n# 0-1 ", "\n# 2-3 ",
                           "\n# MACHINE ", " SNAPSHOTS ", ": the whole job fits\n"}) {
    EXPECT_TRUE(absl::StrContains(memory.out, part)) << part << " is not in " << memory.out;
  }
  const Outcome json = Run("submit --dry-run -o json --job-id j examples/tiny.yaml");
  EXPECT_EQ(json.code, 0);
  EXPECT_TRUE(absl::StrContains(json.out, "\"job_id\": \"j\"")) << json.out;
}

TEST_F(ProgramTest, AJobThatDoesNotFitThisMachineIsRefusedWithItsSum) {
  const Outcome refused =
      Run(absl::StrCat("local --agents 2 --slots 2 examples/tiny.yaml --state-dir ", directory_,
                       "/state --set model.hidden_size=65536"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(absl::StrContains(refused.error, "(weights) + ")) << refused.error;
  EXPECT_TRUE(absl::StrContains(refused.error, " TiB; ")) << "the sum" << refused.error;
  EXPECT_TRUE(absl::StrContains(refused.error, " are left by ")) << refused.error;
}

TEST_F(ProgramTest, AnAbsentDriverIsThree) {
  const std::string address =
      absl::StrCat("--address unix:/tmp/megascale-absent-", getpid(), ".sock");
  for (const char* command : {"status j", "status", "list", "watch j", "wait j", "cancel j",
                              "logs j", "submit --retry-for 0s examples/tiny.yaml"}) {
    const Outcome outcome = Run(absl::StrCat(command, " ", address));
    EXPECT_EQ(outcome.code, 3) << command << outcome.error;
    EXPECT_TRUE(absl::StartsWith(outcome.error, "megascale: no driver can be reached at unix:"))
        << outcome.error;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(Run("list --address nonsense").code, 2);
  EXPECT_EQ(Run("list --address node:1").code, 2);
}

TEST_F(ProgramTest, LocalRefusesWhatDoesNotFitBeforeAnythingStarts) {
  const std::string state = directory_ + "/state";
  const Outcome slots = Run(absl::StrCat(
      "local examples/tiny.yaml --agents 2 --slots 1 --state-dir ", state, " --data ", text_));
  EXPECT_EQ(slots.code, 2);
  EXPECT_EQ(slots.error, "megascale: examples/tiny.yaml: needs 4 slots; 2 agents × 1 slot = 2\n");
  const Outcome data = Run(absl::StrCat(
      "local examples/tiny.yaml --agents 2 --slots 2 --state-dir ", state, " --data /nonexistent"));
  EXPECT_EQ(data.code, 2);
  EXPECT_TRUE(absl::StrContains(data.error, "/nonexistent")) << data.error;
  EXPECT_EQ(Run("local examples/tiny.yaml --agents 0").code, 2);
  EXPECT_FALSE(std::filesystem::exists(state));
}

TEST_F(ProgramTest, CheckpointsThatAreNotThereAreFour) {
  for (const char* command :
       {"checkpoint list", "checkpoint inspect", "checkpoint digest", "checkpoint verify",
        "generate --checkpoint", "evaluate --checkpoint"}) {
    EXPECT_EQ(Run(absl::StrCat(command, " /nonexistent")).code, 4) << command;
  }
  EXPECT_EQ(Run("generate").code, 2);
}

TEST_F(ProgramTest, VersionIsShown) {
  EXPECT_TRUE(absl::StartsWith(Run("version").out, "megascale "));
  EXPECT_TRUE(absl::StartsWith(Run("version -o json").out, "{\"version\": \""));
}

}  // namespace
