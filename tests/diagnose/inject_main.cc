// megascale-inject: injects faults into a real job on this machine and judges what `megascale
// diagnose` says. See --help.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/diagnose/side_by_side.h"

namespace megascale::injection {
namespace {

int Main(int argc, char** argv) {
  uint64_t seed = 0;
  int runs = 1;
  std::string fault;
  bool is_verbose = false;
  SideBySide together;
  RunOptions& options = together.run;
  CLI::App app("Injects faults into a job of eight workers on four machines, and diagnoses it.");
  app.add_option("--seed", seed, "the first seed: fault, layout, victim and moment")
      ->capture_default_str();
  app.add_option("--runs", runs, "how many seeds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--fault", fault, "only the seeds of this fault, such as link_down");
  app.add_option("--jobs", together.jobs,
                 "runs at a time; a run that keeps this machine busy is made alone")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  app.add_flag("--verbose", is_verbose, "shows each verdict, and a wrong one with its evidence");
  app.add_option("--save", options.save, "folder for the evidence of each run's last verdict");
  app.add_flag("--keep-logs", options.keep_logs, "keeps the folders with the logs");
  CLI11_PARSE(app, argc, argv);
  if (is_verbose)
    options.say = [](const std::string& line) { std::printf("  %s\n", line.c_str()); };
  if (!fault.empty() && !IsFault(fault)) {
    std::fprintf(stderr, "--fault %s: there is no such fault; see tests/diagnose/README.md\n",
                 fault.c_str());
    return 2;
  }
  std::vector<Injection> injections;
  for (; runs > static_cast<int>(injections.size()); ++seed) {
    const Injection injection = Draw(seed);
    if (fault.empty() || Name(injection.fault) == fault) injections.push_back(injection);
  }
  together.on_report = [](const RunReport& report) {
    std::printf("%s\n", Describe(report).c_str());
    std::fflush(stdout);
  };
  const std::vector<RunReport> reports = RunInjections(injections, together);
  std::printf("%s%s", Table(reports).c_str(), Counts(reports).c_str());
  const bool is_right = std::all_of(reports.begin(), reports.end(),
                                    [](const RunReport& report) { return report.is_right; });
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace megascale::injection

int main(int argc, char** argv) { return megascale::injection::Main(argc, argv); }
