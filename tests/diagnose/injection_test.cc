// What `megascale diagnose` says of real jobs with faults. Replays recorded evidence, and runs live
// two faults that stop a job; `./dev soak` makes 120 live runs, ten of each fault. By hand:
//   megascale-inject --seed S --runs N --verbose
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/diagnose/injection.h"
#include "tests/diagnose/injection_run.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::injection {
namespace {

constexpr uint64_t kSoakSeeds = 120;
constexpr double kRightMin = 0.95;

TEST(InjectionTest, SeedsGoThroughAllFaultsAndLayouts) {
  for (uint64_t seed = 0; seed < 3 * kNumFaults; ++seed) {
    const Injection injection = Draw(seed);
    EXPECT_EQ(static_cast<uint64_t>(injection.fault), seed % kNumFaults);
    EXPECT_EQ(static_cast<uint64_t>(injection.layout), seed / kNumFaults);
    EXPECT_LT(injection.rank, 8);
  }
}

TEST(InjectionTest, AVerdictMustNameTheVictimAndTheCause) {
  Injection injection = Draw(0);
  ASSERT_EQ(injection.fault, Fault::kStopWorker);
  injection.rank = 5;
  EXPECT_EQ(Judge(injection, "n2", {.cause = "stopped_rank", .rank = 5}), Judgement::kRight);
  EXPECT_EQ(Judge(injection, "n2", {.cause = "stopped_rank", .rank = 4, .node = "n2"}),
            Judgement::kWrong);
  EXPECT_EQ(Judge(injection, "n2", {.cause = "slow_worker", .rank = 5}), Judgement::kRightVictim);
  EXPECT_EQ(Judge(injection, "n2", {.cause = "unknown"}), Judgement::kNotYet);
  injection.fault = Fault::kNothing;
  EXPECT_EQ(Judge(injection, "n2", {.cause = "jitter"}), Judgement::kRight);
  EXPECT_EQ(Judge(injection, "n2", {.cause = "slow_worker", .rank = 5}), Judgement::kWrong);
}

// Each file is named after its seed, from which the victim follows, and its fault.
TEST(RecordedInjectionsTest, HaveTheVerdictsThatAreRight) {
  const std::string folder = e2e::Runfile("tests/diagnose/recorded");
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".gz") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  EXPECT_GE(files.size(), 5u);
  for (const std::string& file : files) {
    const std::string stem = std::filesystem::path(file).stem().string();
    const Injection injection = Draw(std::stoull(stem));
    ASSERT_EQ(stem.substr(stem.find('-') + 1), Name(injection.fault));
    const e2e::CommandResult result =
        e2e::Run({e2e::Program(), "diagnose", "--saved", file, "-o", "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Said said = ReadVerdict(result.out);
    // Machines hold two ranks each, in order.
    const std::string node = "n" + std::to_string(injection.rank / 2);
    EXPECT_EQ(Judge(injection, node, said), Judgement::kRight) << stem << ": " << said.summary;
  }
}

TEST(LiveInjectionsTest, AStoppedJobIsExplainedWithinFiveSeconds) {
  if (IsSoak()) return;  // below
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}}) {
    Injection injection = Draw(seed);
    ASSERT_EQ(LimitOf(injection.fault), absl::Seconds(5));
    injection.step = 6;  // little of the job's past is needed here
    const RunReport report = RunInjection(injection, {});
    EXPECT_TRUE(report.is_victim_right) << Describe(report);
  }
}

TEST(LiveInjectionsTest, ManySeedsUnderSoak) {
  if (!IsSoak()) return;  // the case above
  std::vector<RunReport> reports;
  for (uint64_t seed = 0; seed < kSoakSeeds; ++seed) {
    reports.push_back(RunInjection(Draw(seed), {}));
    std::printf("%s\n", Describe(reports.back()).c_str());
    std::fflush(stdout);
  }
  std::printf("%s", Table(reports).c_str());
  const auto num_right = std::count_if(reports.begin(), reports.end(),
                                       [](const RunReport& report) { return report.is_right; });
  EXPECT_GE(static_cast<double>(num_right), kRightMin * static_cast<double>(reports.size()));
}

}  // namespace
}  // namespace megascale::injection
