// Runs megascale-sim as a person does with the seed of a report: two processes print the same
// trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/log.h"
#include "tests/sim/simulation.h"

namespace megascale::sim {
namespace {

constexpr uint64_t kSeed = 42;

struct Ended {
  int exit_code = -1;
  std::string out;
};

Ended RunProgram(const std::string& flags) {
  Ended ended;
  const std::string command = absl::StrCat("timeout 60 tests/sim/megascale-sim ", flags, " 2>&1");
  FILE* const output = ::popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), output)) > 0;) {
    ended.out.append(buffer, got);
  }
  const int status = ::pclose(output);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

TEST(ProgramTest, ASeedIsReplayedLineByLineWithTheSameHash) {
  const std::string flags = absl::StrCat("--seed ", kSeed);
  const Ended first = RunProgram(flags + " --trace");
  EXPECT_EQ(first.exit_code, 0) << first.out;
  EXPECT_EQ(RunProgram(flags + " --trace").out, first.out);
  std::vector<std::string> lines = absl::StrSplit(first.out, '\n', absl::SkipEmpty());
  base::InitLog("sim", base::LogLevel::kError);
  const Outcome outcome = Simulate({.seed = kSeed});
  EXPECT_EQ(lines.size(), static_cast<size_t>(outcome.num_lines) + 1);
  EXPECT_THAT(lines.back(),
              testing::StartsWith(absl::StrFormat("seed %d: hash %016x, ", kSeed, outcome.hash)));
  EXPECT_EQ(RunProgram(flags).out, lines.back() + "\n") << "the trace changes what happens";
  lines.pop_back();
  // When in virtual time, who, what.
  EXPECT_THAT(lines, testing::Each(testing::MatchesRegex(" *[0-9]+\\.[0-9]{6} s  [^ ]+ +[^ ].*")));
}

TEST(ProgramTest, ManySeedsAreCountedAndAWrongFlagIsRefused) {
  const Ended many = RunProgram("--seed 7 --seeds 3");
  EXPECT_EQ(many.exit_code, 0);
  EXPECT_EQ(many.out, "3 seeds: every invariant held\n");
  EXPECT_NE(RunProgram("--seeds 0").exit_code, 0);
}

}  // namespace
}  // namespace megascale::sim
