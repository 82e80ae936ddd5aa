// `megascale minder watch` beside a real job whose machine becomes slow: it names that machine.
// `./dev test` injects one fault, with a short continuity, and a machine that lacks cores in
// e2e/limits_test; `./dev soak` injects all and prints a table of times.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <vector>

#include "tests/diagnose/minder_run.h"
#include "tests/soak.h"

namespace megascale::injection {
namespace {

TEST(MinderInjectionTest, MinderNamesTheMachineWhoseRankIsLate) {
  if (IsSoak()) return;  // MinderNamesTheSlowMachine
  const MinderReport report = RunMinder({.fault = Fault::kLateRank,
                                         .calm = absl::Seconds(4),
                                         .every = absl::Seconds(2),
                                         .continuity = absl::Seconds(10),
                                         .deadline = absl::Seconds(90)});
  EXPECT_TRUE(report.is_right()) << MinderTable({report});
  EXPECT_EQ(report.metric, "awaiting share");
  EXPECT_GT(report.began_after, -absl::Seconds(5));
  EXPECT_LT(report.began_after, report.after) << "the fault began before it was found";
}

// Where others only wait for the machine, the difference may vanish now and then within a minute,
// and Minder may name nobody.
TEST(MinderInjectionTest, MinderNamesTheSlowMachine) {
  if (!IsSoak()) return;  // the case above
  const std::set<Fault> passing = {Fault::kSlowLink, Fault::kLateRank};
  std::vector<MinderReport> reports;
  for (const Fault fault : SlowingFaults()) {
    reports.push_back(RunMinder({.fault = fault,
                                 .victim = static_cast<int>(reports.size()) % 4,
                                 .continuity = absl::Minutes(1),
                                 .deadline = absl::Minutes(2)}));
    const MinderReport& report = reports.back();
    std::printf("%s", MinderTable({report}).c_str());
    std::fflush(stdout);
    EXPECT_EQ(report.problem, "");
    EXPECT_EQ(report.calm_alarm, "");
    const bool may_be_silent = passing.contains(fault) && report.named.empty();
    EXPECT_TRUE(report.is_right() || may_be_silent) << MinderTable({report});
  }
  std::printf("%s", MinderTable(reports).c_str());
}

}  // namespace
}  // namespace megascale::injection
