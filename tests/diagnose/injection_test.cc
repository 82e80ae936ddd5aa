// What `megascale diagnose` says of real jobs with faults. Replays recorded evidence, and runs live
// two faults that stop a job; `./dev soak diagnose` makes 154 live runs: 100 with a victim that
// must be named, 14 with one that need not be, and 40 in which nobody may be named. By hand:
//   megascale-inject --seed S --runs N --verbose
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/diagnose/injection.h"
#include "tests/diagnose/injection_run.h"
#include "tests/diagnose/machines.h"
#include "tests/diagnose/paced_cluster.h"
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

// The reports of the soak, of which so many with a victim that must be named are wrong.
std::vector<RunReport> SoakReports(int num_wrong) {
  std::vector<RunReport> reports;
  for (const uint64_t seed : SoakSeeds({})) {
    const Fault fault = Draw(seed).fault;
    reports.push_back(ReportOf(fault, !MustBeNamed(fault) || num_wrong-- <= 0));
  }
  return reports;
}

TEST(InjectionTest, SeedsGoThroughAllFaultsAndLayouts) {
  for (uint64_t seed = 0; seed < 3 * kNumFaults; ++seed) {
    const Injection injection = Draw(seed);
    EXPECT_EQ(static_cast<uint64_t>(injection.fault), seed % kNumFaults);
    const bool is_of_a_stage = injection.fault >= Fault::kStageAFifth;
    EXPECT_EQ(static_cast<uint64_t>(injection.layout), is_of_a_stage ? 1 : seed / kNumFaults);
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

TEST(InjectionTest, TheLayoutIsNeverAtFault) {
  for (uint64_t seed = 0; seed < kNumFaults; ++seed) {
    EXPECT_EQ(Judge(Draw(seed), "n1", {.cause = "unequal_stages"}), Judgement::kWrong);
  }
  Injection injection = Draw(0);
  injection.fault = Fault::kStageAFifth;
  EXPECT_EQ(Judge(injection, "n1", {.cause = "slower_stage"}), Judgement::kRight);
  EXPECT_EQ(Judge(injection, "n1", {.cause = "slow_machine", .node = "n1"}), Judgement::kRight);
  EXPECT_EQ(Judge(injection, "n1", {.cause = "slow_machine", .node = "n2"}), Judgement::kWrong);
  injection.fault = Fault::kStageTwice;
  EXPECT_EQ(Judge(injection, "n1", {.cause = "slower_stage"}), Judgement::kNotYet);
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

TEST(InjectionTest, AProcessKeeperThatStopsMustBeNamedThoughTheJobGoesOn) {
  Injection injection = Draw(0);
  injection.fault = Fault::kStopKeeper;
  EXPECT_TRUE(MustBeNamed(injection.fault));
  EXPECT_EQ(Judge(injection, "n0", {.cause = "healthy"}), Judgement::kNotYet);
  EXPECT_EQ(Judge(injection, "n0", {.cause = "silent_keeper", .node = "n0"}), Judgement::kRight);
  EXPECT_EQ(Judge(injection, "n0", {.cause = "silent_keeper", .node = "n1"}), Judgement::kWrong);
  injection.fault = Fault::kStopHost;  // batches are there already
  EXPECT_FALSE(MustBeNamed(injection.fault));
  EXPECT_EQ(Judge(injection, "n0", {.cause = "healthy"}), Judgement::kRight);
}

TEST(SoakTest, HasAHundredVictimsThatMustBeNamedAndTwentyRunsOfEachKindWithout) {
  std::map<Fault, int> counts;
  for (const uint64_t seed : SoakSeeds({})) ++counts[Draw(seed).fault];
  EXPECT_EQ(counts.size(), static_cast<size_t>(kNumFaults));
  int num_named = 0;
  for (const auto& [fault, count] : counts) num_named += MustBeNamed(fault) ? count : 0;
  EXPECT_EQ(num_named, 100);
  EXPECT_EQ(counts[Fault::kStopHost], 7);
  EXPECT_EQ(counts[Fault::kStageAFifth], 7);
  EXPECT_EQ(counts[Fault::kNothing], 20);
  EXPECT_EQ(counts[Fault::kBusyAlike], 20);
}

TEST(SoakTest, FiveOfAHundredFaultsMayBeWrongAndASixthMayNot) {
  EXPECT_TRUE(BrokenRules(SoakReports(5)).empty());
  ASSERT_EQ(BrokenRules(SoakReports(6)).size(), 1u);
  EXPECT_EQ(BrokenRules(SoakReports(6))[0],
            "94 of 100 runs whose victim must be named are right; expected 95 %");
}

TEST(SoakTest, RunsInWhichNobodyNeedBeNamedAreCountedApart) {
  EXPECT_EQ(Counts(SoakReports(3)),
            "97 of 100 runs whose victim must be named are right\n"
            "14 of 14 runs that the job survives name nobody else\n"
            "40 of 40 runs without a victim name nobody\n");
}

TEST(SoakTest, OneWrongVerdictWithoutAFaultBreaksTheRules) {
  for (const Fault fault : {Fault::kNothing, Fault::kBusyAlike, Fault::kStopHost}) {
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
std::vector<std::string> RecordedFiles() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(e2e::Runfile("tests/diagnose/recorded"))) {
    if (entry.path().extension() == ".gz") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Injection InjectionOf(const std::string& file) {
  const std::string stem = std::filesystem::path(file).stem().string();
  Injection injection = Draw(std::stoull(stem));
  injection.fault = FaultNamed(stem.substr(stem.find('-') + 1));
  return injection;
}

// Those that lack a recording stand here with the reason.
TEST(RecordedInjectionsTest, ThereIsOneOfEachFaultWhoseVictimMustBeNamed) {
  const std::map<Fault, std::string> lacking = {
      {Fault::kStopDriver, "nothing can be read from a driver that is stopped"},
  };
  std::set<Fault> recorded;
  for (const std::string& file : RecordedFiles()) recorded.insert(InjectionOf(file).fault);
  for (int i = 0; i < kNumFaults; ++i) {
    const Fault fault = Draw(static_cast<uint64_t>(i)).fault;
    if (!MustBeNamed(fault)) continue;
    EXPECT_NE(recorded.contains(fault), lacking.contains(fault)) << Name(fault);
  }
}

TEST(RecordedInjectionsTest, HaveTheVerdictsThatAreRight) {
  for (const std::string& file : RecordedFiles()) {
    const Injection injection = InjectionOf(file);
    const e2e::CommandResult result =
        e2e::Run({e2e::Program(), "diagnose", "--saved", file, "-o", "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Said said = ReadVerdict(result.out);
    // Machines hold two ranks each, in order.
    const std::string node = "n" + std::to_string(injection.rank / 2);
    EXPECT_EQ(Judge(injection, node, said), Judgement::kRight) << file << ": " << said.summary;
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
  EXPECT_GE(num_together, 70) << "of 154";
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

// Runs side by side are forked by a process that may have emulated machines before.
TEST(MachinesTest, AForkedProcessEmulatesMachinesOfItsOwn) {
  const Machines machines(1);
  ASSERT_TRUE(machines.status().ok()) << machines.status();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool ok = false;
    {
      const Machines of_the_same_name(1);
      ok = of_the_same_name.status().ok();
    }
    ::_exit(ok ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Nobody runs `megascale diagnose`: the driver sees that steps take twice as long, examines the job
// twice, and names the machine in the job's view. It looks every two seconds here, so that it knows
// soon what is usual. Only in soaks: beside other load the job is slow everywhere.
TEST(LiveInjectionsTest, TheDriverItselfSuspectsAMachineThatHasBecomeSlow) {
  if (!IsSoak() || !Setting("MEGASCALE_DIAGNOSE_ONLY", "").empty()) return;
  PacedCluster paced;
  ASSERT_TRUE(paced.status().ok()) << paced.status();
  std::vector<std::string> fields = Layouts()[0].fields;
  fields.insert(fields.end(),
                {"train.steps=100000", "checkpoint.interval=0", "fault.heartbeat_interval=250ms"});
  e2e::Cluster& cluster = paced.cluster();
  cluster.SetDriverFlags({"--look-every", "2s"});
  paced.Start(2, fields);
  ASSERT_TRUE(cluster.WaitForStep("job", 3, 90));
  paced.LimitCores();
  // Long enough to know what is usual.
  ASSERT_TRUE(cluster.WaitForStep("job", 40, 300));
  EXPECT_FALSE(cluster.Status("job").has_suspicion());
  const control::v1::Job before = cluster.Status("job");
  paced.machines().LimitCores(2, 10);  // a fifth of what it had
  control::v1::Suspicion suspicion;
  EXPECT_TRUE(e2e::WaitUntil(
      [&] {
        suspicion = cluster.Status("job").suspicion();
        return !suspicion.node_id().empty();
      },
      180));
  EXPECT_EQ(suspicion.kind(), control::v1::Suspicion::KIND_SLOW) << suspicion.verdict();
  EXPECT_EQ(suspicion.node_id(), "n2") << suspicion.verdict();
  EXPECT_EQ(suspicion.attempt(), before.attempt());
  EXPECT_GT(suspicion.evidence_size(), 0);
  const e2e::CommandResult status = cluster.Megascale({"status", "job"});
  EXPECT_NE(status.out.find("suspect: "), std::string::npos) << status.out;
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
  std::printf("%s%s", Table(reports).c_str(), Counts(reports).c_str());
  for (const std::string& broken : BrokenRules(reports)) ADD_FAILURE() << broken;
}

}  // namespace
}  // namespace megascale::injection
