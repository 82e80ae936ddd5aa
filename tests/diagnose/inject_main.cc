// megascale-inject: injects faults into a real job on this machine and judges what `megascale
// diagnose` says. See --help.
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/diagnose/injection_run.h"

namespace megascale::injection {
namespace {

int Main(int argc, char** argv) {
  uint64_t seed = 0;
  int runs = 1;
  std::string fault;
  bool is_verbose = false;
  RunOptions options;
  CLI::App app("Injects faults into a job of eight workers on four machines, and diagnoses it.");
  app.add_option("--seed", seed, "the first seed: fault, layout, victim and moment")
      ->capture_default_str();
  app.add_option("--runs", runs, "how many seeds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--fault", fault, "only the seeds of this fault, such as link_down");
  app.add_flag("--verbose", is_verbose, "shows each verdict, and a wrong one with its evidence");
  app.add_option("--save", options.save, "folder for the evidence of each run's last verdict");
  app.add_flag("--keep-logs", options.keep_logs, "keeps the folders with the logs");
  CLI11_PARSE(app, argc, argv);
  if (is_verbose)
    options.say = [](const std::string& line) { std::printf("  %s\n", line.c_str()); };
  std::vector<RunReport> reports;
  int problems = 0;
  for (; runs > 0; ++seed) {
    const Injection injection = Draw(seed);
    if (!fault.empty() && Name(injection.fault) != fault) continue;
    --runs;
    reports.push_back(RunInjection(injection, options));
    std::printf("%s\n", Describe(reports.back()).c_str());
    std::fflush(stdout);
    problems += reports.back().is_right ? 0 : 1;
  }
  std::printf("%s", Table(reports).c_str());
  return problems == 0 ? 0 : 1;
}

}  // namespace
}  // namespace megascale::injection

int main(int argc, char** argv) { return megascale::injection::Main(argc, argv); }
