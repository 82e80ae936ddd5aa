// What `megascale diagnose` says of real jobs with faults. Replays recorded evidence, and runs live
// two faults that stop a job; `./dev soak diagnose` makes 140 live runs: 100 with a fault, and 40
// in which nothing may be named. By hand:
//   megascale-inject --seed S --runs N --verbose
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/diagnose/injection.h"
#include "tests/diagnose/injection_run.h"
#include "tests/diagnose/report.h"
#include "tests/diagnose/side_by_side.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::injection {
namespace {

RunReport ReportOf(Fault fault, bool is_right) {
  RunReport report;
  report.injection.fault = fault;
  report.is_right = report.is_victim_right = is_right;
  return report;
}

// The reports of the soak, of which so many with a victim are wrong.
std::vector<RunReport> SoakReports(int num_wrong) {
  std::vector<RunReport> reports;
  for (const uint64_t seed : SoakSeeds({})) {
    const Fault fault = Draw(seed).fault;
    reports.push_back(ReportOf(fault, !HasVictim(fault) || num_wrong-- <= 0));
  }
  return reports;
}

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

TEST(InjectionTest, AStoppedDriverIsNoRanksFault) {
  Injection injection = Draw(0);
  injection.fault = Fault::kStopDriver;
  EXPECT_EQ(Judge(injection, "n0", {.cause = "silent_driver"}), Judgement::kRight);
  EXPECT_EQ(Judge(injection, "n0", {.cause = ""}), Judgement::kNotYet);
  EXPECT_EQ(Judge(injection, "n0", {.cause = "silent_machine", .node = "n0"}), Judgement::kWrong);
}

TEST(InjectionTest, TheVictimOfSlowReadsReads) {
  for (uint64_t seed = 0; seed < 50 * kNumFaults; ++seed) {
    const Injection injection = Draw(seed);
    if (injection.fault != Fault::kSlowStorage) continue;
    EXPECT_TRUE(injection.rank < 2 || injection.rank > 5) << injection.rank;
  }
}

TEST(SoakTest, HasAHundredFaultsAndTwentyRunsOfEachKindWithout) {
  std::map<Fault, int> counts;
  for (const uint64_t seed : SoakSeeds({})) ++counts[Draw(seed).fault];
  EXPECT_EQ(counts.size(), static_cast<size_t>(kNumFaults));
  int num_faults = 0;
  for (const auto& [fault, count] : counts) num_faults += HasVictim(fault) ? count : 0;
  EXPECT_EQ(num_faults, 100);
  EXPECT_EQ(counts[Fault::kNothing], 20);
  EXPECT_EQ(counts[Fault::kBusyAlike], 20);
}

TEST(SoakTest, FiveOfAHundredFaultsMayBeWrongAndASixthMayNot) {
  EXPECT_TRUE(BrokenRules(SoakReports(5)).empty());
  ASSERT_EQ(BrokenRules(SoakReports(6)).size(), 1u);
  EXPECT_EQ(BrokenRules(SoakReports(6))[0], "94 of 100 runs with a fault are right; expected 95 %");
}

TEST(SoakTest, OneWrongVerdictWithoutAFaultBreaksTheRules) {
  for (const Fault fault : {Fault::kNothing, Fault::kBusyAlike}) {
    std::vector<RunReport> reports = SoakReports(0);
    reports.push_back(ReportOf(fault, false));
    EXPECT_EQ(BrokenRules(reports).size(), 1u);
  }
}

TEST(SoakTest, ANameBeforeTheFaultBreaksTheRulesThoughTheVerdictIsRight) {
  std::vector<RunReport> reports = SoakReports(0);
  reports[0].calm = "slow worker: rank 3";
  ASSERT_EQ(BrokenRules(reports).size(), 1u);
  EXPECT_NE(BrokenRules(reports)[0].find("slow worker: rank 3"), std::string::npos);
}

// Each file is named after its seed, from which the rank follows, and its fault.
TEST(RecordedInjectionsTest, HaveTheVerdictsThatAreRight) {
  const std::string folder = e2e::Runfile("tests/diagnose/recorded");
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".gz") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  EXPECT_GE(files.size(), 10u);
  for (const std::string& file : files) {
    const std::string stem = std::filesystem::path(file).stem().string();
    Injection injection = Draw(std::stoull(stem));
    injection.fault = FaultNamed(stem.substr(stem.find('-') + 1));
    const e2e::CommandResult result =
        e2e::Run({e2e::Program(), "diagnose", "--saved", file, "-o", "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Said said = ReadVerdict(result.out);
    // Machines hold two ranks each, in order.
    const std::string node = "n" + std::to_string(injection.rank / 2);
    EXPECT_EQ(Judge(injection, node, said), Judgement::kRight) << stem << ": " << said.summary;
  }
}

// What `./dev soak diagnose` was given.
std::string Setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || value[0] == '\0' ? otherwise : value;
}

TEST(SideBySideTest, AReportIsReadAsItWasWritten) {
  RunReport report;
  report.injection = Draw(3);
  report.node = "n2";
  report.is_victim_right = true;
  report.right_after = absl::Seconds(2.5);
  report.said = "slow worker: rank 3 \xff";
  report.calm = "a name";
  report.step_seconds = 0.25;
  const RunReport read = ReadReport(report.injection, WriteReport(report));
  EXPECT_TRUE(Describe(read).starts_with("seed 3 ")) << Describe(read);
  EXPECT_EQ(WriteReport(read), WriteReport(report));
  report.right_after = absl::InfiniteDuration();
  EXPECT_EQ(ReadReport(report.injection, WriteReport(report)).right_after,
            absl::InfiniteDuration());
  const RunReport killed = ReadReport(report.injection, WriteReport(report).substr(0, 30));
  EXPECT_FALSE(killed.is_right);
  EXPECT_NE(killed.problem, "");
}

TEST(SideBySideTest, RunsThatNeedTheMachineAreAlone) {
  EXPECT_TRUE(LoadsMachine(Fault::kNothing));
  EXPECT_TRUE(LoadsMachine(Fault::kBusyMachine));
  EXPECT_FALSE(LoadsMachine(Fault::kStopWorker));
  int num_together = 0;
  for (const uint64_t seed : SoakSeeds({})) num_together += LoadsMachine(Draw(seed).fault) ? 0 : 1;
  EXPECT_GE(num_together, 70) << "of 140";
}

TEST(LiveInjectionsTest, AStoppedJobIsExplainedWithinFiveSeconds) {
  if (IsSoak()) return;  // below
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}}) {
    Injection injection = Draw(seed);
    ASSERT_EQ(LimitOf(injection.fault), absl::Seconds(5));
    injection.step = 6;  // little of the job's past is needed here
    const RunReport report = RunInjection(injection, {});
    EXPECT_TRUE(report.is_right) << Describe(report);
    EXPECT_EQ(report.calm, "") << Describe(report);
  }
}

TEST(LiveInjectionsTest, ManySeedsUnderSoak) {
  if (!IsSoak()) return;  // the case above
  std::vector<Injection> injections;
  for (const uint64_t seed : SoakSeeds({})) {
    const Injection injection = Draw(seed);
    const std::string only = Setting("MEGASCALE_DIAGNOSE_ONLY", "");
    if (only.empty() || Name(injection.fault) == only) injections.push_back(injection);
  }
  const size_t runs = std::stoul(Setting("MEGASCALE_DIAGNOSE_RUNS", "1000000"));
  injections.resize(std::min(injections.size(), runs));
  ASSERT_FALSE(injections.empty()) << "there is no such fault";
  SideBySide together;
  together.jobs = std::stoi(Setting("MEGASCALE_DIAGNOSE_JOBS", "1"));
  together.on_report = [](const RunReport& report) {
    std::printf("%s\n", Describe(report).c_str());
    std::fflush(stdout);
  };
  const std::vector<RunReport> reports = RunInjections(injections, together);
  std::printf("%s", Table(reports).c_str());
  for (const std::string& broken : BrokenRules(reports)) ADD_FAILURE() << broken;
}

}  // namespace
}  // namespace megascale::injection
