#include "tests/diagnose/report.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megascale::injection {
namespace {

constexpr double kRightMin = 0.95;

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

struct Count {
  int right = 0;
  int all = 0;
};

// Counts the runs with such a fault.
template <typename Condition>
Count CountIf(const std::vector<RunReport>& reports, const Condition& condition) {
  Count count;
  for (const RunReport& report : reports) {
    if (!condition(report.injection.fault)) continue;
    ++count.all;
    count.right += report.is_right ? 1 : 0;
  }
  return count;
}

}  // namespace

std::string Describe(const RunReport& report) {
  const Injection& injection = report.injection;
  std::string text = absl::StrFormat(
      "seed %d %s, rank %d on %s, %s, step %.0f ms: ", injection.seed, Name(injection.fault),
      injection.rank, report.node, Layouts()[static_cast<size_t>(injection.layout)].name,
      report.step_seconds * 1000);
  if (!report.problem.empty()) return absl::StrCat(text, "PROBLEM ", report.problem);
  absl::StrAppend(&text, report.is_right          ? "right"
                         : report.is_victim_right ? "WRONG CAUSE"
                                                  : "WRONG");
  if (report.right_after < absl::InfiniteDuration()) {
    absl::StrAppendFormat(&text, " after %.1f s", Seconds(report.right_after));
  }
  absl::StrAppend(&text, ": ", report.said);
  if (!report.wrong.empty()) absl::StrAppend(&text, " | it said: ", report.wrong);
  if (!report.calm.empty()) absl::StrAppend(&text, " | before the fault: ", report.calm);
  return text;
}

std::string Table(const std::vector<RunReport>& reports) {
  std::map<Fault, std::vector<const RunReport*>> by_fault;
  for (const RunReport& report : reports) {
    if (report.problem.empty()) by_fault[report.injection.fault].push_back(&report);
  }
  std::string table = "| fault | runs | right victim | right cause | median | longest |\n";
  absl::StrAppend(&table, "| --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [fault, runs] : by_fault) {
    int victims = 0;
    int rights = 0;
    std::vector<double> seconds;
    for (const RunReport* run : runs) {
      victims += run->is_victim_right ? 1 : 0;
      rights += run->is_right ? 1 : 0;
      if (run->is_right && run->right_after < absl::InfiniteDuration()) {
        seconds.push_back(Seconds(run->right_after));
      }
    }
    std::sort(seconds.begin(), seconds.end());
    const std::string times =
        seconds.empty()
            ? " | "
            : absl::StrFormat("%.1f s | %.1f s", seconds[seconds.size() / 2], seconds.back());
    absl::StrAppendFormat(&table, "| %s | %d | %d | %d | %s |\n", Name(fault), runs.size(), victims,
                          rights, times);
  }
  return table;
}

std::string Counts(const std::vector<RunReport>& reports) {
  const Count named = CountIf(reports, MustBeNamed);
  const Count survived =
      CountIf(reports, [](Fault fault) { return HasVictim(fault) && !MustBeNamed(fault); });
  const Count calm = CountIf(reports, [](Fault fault) { return !HasVictim(fault); });
  return absl::StrFormat(
      "%d of %d runs whose victim must be named are right\n"
      "%d of %d runs that the job survives name nobody else\n"
      "%d of %d runs without a victim name nobody\n",
      named.right, named.all, survived.right, survived.all, calm.right, calm.all);
}

std::vector<std::string> BrokenRules(const std::vector<RunReport>& reports) {
  std::vector<std::string> broken;
  for (const RunReport& report : reports) {
    if (!MustBeNamed(report.injection.fault) && !report.is_right) {
      broken.push_back(absl::StrCat("nobody else may be named: ", Describe(report)));
    } else if (!report.calm.empty()) {
      broken.push_back(absl::StrCat("named before the fault: ", Describe(report)));
    }
  }
  const Count named = CountIf(reports, MustBeNamed);
  if (named.right < kRightMin * named.all) {
    broken.push_back(
        absl::StrFormat("%d of %d runs whose victim must be named are right; expected %.0f %%",
                        named.right, named.all, 100 * kRightMin));
  }
  return broken;
}

}  // namespace megascale::injection
