// The simulator as a program: replays a seed, or looks for one that breaks an invariant.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "tests/sim/simulation.h"

namespace {

using megascale::sim::LinkFault;
using megascale::sim::Outcome;

constexpr char kDescription[] =
    "Runs the production control plane (driver, agents, workers' decisions) in virtual time, under "
    "a\n"
    "seeded storm of faults, and checks its invariants (docs/invariants.md).";
constexpr char kExamples[] =
    "Examples:\n"
    "  megascale-sim --seed 42            one run: its hash, and what happened in numbers\n"
    "  megascale-sim --seed 42 --trace    the same run, one line per event, in virtual time\n"
    "  megascale-sim --seeds 10000        seeds 1 to 10000, until one breaks an invariant\n"
    "  megascale-sim --seed 5000 --seeds 1000   seeds 5000 to 5999\n"
    "Exit status: 0, every invariant held; 1, one did not, or a check of the product failed.";

uint64_t running_seed = 0;

// A failed check of the product ends the process: the seed is the report.
extern "C" void OnAbort(int) {
  std::fprintf(stderr, "seed %llu ended the process; replay: megascale-sim --seed %llu --trace\n",
               static_cast<unsigned long long>(running_seed),
               static_cast<unsigned long long>(running_seed));
  std::_Exit(1);
}

void Print(uint64_t seed, const Outcome& outcome) {
  std::cout << absl::StreamFormat(
      "seed %d: hash %016x, %.1f s, %d events, %d jobs (%d succeeded), %d attempts\n", seed,
      outcome.hash, absl::ToDoubleSeconds(outcome.virtual_time), outcome.num_lines,
      outcome.num_jobs, outcome.num_succeeded, outcome.num_attempts);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(kDescription, "megascale-sim");
  app.footer(kExamples);
  uint64_t first = 1;
  uint64_t count = 1;
  bool trace = false;
  int64_t restore_after = 0;
  app.add_option("--seed", first, "the (first) seed")->capture_default_str();
  app.add_option("--seeds", count, "how many seeds, from --seed on")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--trace", trace, "print every event");
  app.add_option("--restore-after", restore_after,
                 "seconds after which the driver goes on with a copy of its log; 0: it does not")
      ->check(CLI::NonNegativeNumber);
  bool calm = false;
  LinkFault link = LinkFault::kNone;
  app.add_flag("--calm", calm, "no storm");
  app.add_option("--link", link, "in a calm run: what happens to a link, from the beginning on")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LinkFault>{{"one-way", LinkFault::kOneWay},
                                           {"other-way", LinkFault::kOtherWay},
                                           {"both-ways", LinkFault::kBothWays}}));
  CLI11_PARSE(app, argc, argv);
  megascale::base::InitLog("megascale-sim", megascale::base::LogLevel::kError);
  std::signal(SIGABRT, OnAbort);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    running_seed = seed;
    const Outcome outcome = megascale::sim::Simulate({.seed = seed,
                                                      .trace = trace,
                                                      .calm = calm || link != LinkFault::kNone,
                                                      .restore_after = absl::Seconds(restore_after),
                                                      .link_fault = link});
    if (count == 1 || !outcome.violations.empty()) Print(seed, outcome);
    if (outcome.violations.empty()) continue;
    const megascale::sim::Violation& first_one = outcome.violations.front();
    std::cout << absl::StreamFormat(
        "seed %d breaks %s at %.6f s: %s\nreplay: megascale-sim --seed %d --trace\n", seed,
        first_one.invariant, absl::ToDoubleSeconds(first_one.when), first_one.what, seed);
    return 1;
  }
  if (count > 1) std::cout << absl::StreamFormat("%d seeds: every invariant held\n", count);
  return 0;
}
