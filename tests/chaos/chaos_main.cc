// megascale-chaos: injects faults into a real cluster on this machine and reports the results. See
// --help.
#include <cstdio>
#include <iostream>

#include "CLI/CLI.hpp"
#include "tests/chaos/chaos_run.h"

namespace megascale::chaos {
namespace {

constexpr char kExamples[] = R"(
Each seed stands for its faults: the same seed strikes the same victims at the same moments of the
job. The last line of a run is OK, or says how many problems there were; with a problem the logs are
kept and the exit code is 1.

Examples:
  megascale-chaos --seed 7
  megascale-chaos --seed 7 --seeds 12 --faults 5
  megascale-chaos --seed 7 --set parallel.virtual_pipeline_model_parallel_size=2
)";

int Main(int argc, char** argv) {
  uint64_t seed = 1;
  ChaosJob job;
  int num_faults = 3;
  int seeds = 1;
  CLI::App app("Kills and stops processes of a cluster that trains; the bits must stay the same.");
  app.footer(kExamples);
  app.add_option("--seed", seed, "the first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "how many seeds, one after the other")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--faults", num_faults, "faults of one run")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--set", job.fields, "FIELD=VALUE of the job, such as another layout")->take_all();
  CLI11_PARSE(app, argc, argv);

  const auto say = [](const std::string& line) { std::cout << "  " << line << std::endl; };
  CalmRun calm(job, /*is_shared=*/seeds > 1);
  int problems = 0;
  for (int i = 0; i < seeds; ++i) {
    std::cout << "seed " << seed + i << ", " << num_faults << " faults" << std::endl;
    const Report report = ChaosRun(seed + i, job, say).Run(num_faults, &calm);
    problems += static_cast<int>(report.problems.size());
    std::cout << (report.problems.empty() ? "same digest and loss log as a calm run"
                                          : "NOT as it must be")
              << " (step " << report.ending.step << ", digest " << report.ending.digest << "), "
              << absl::FormatDuration(absl::Trunc(report.took, absl::Milliseconds(100)))
              << std::endl;
  }
  if (problems == 0) {
    std::cout << "OK" << std::endl;
  } else {
    std::cout << problems << " problems" << std::endl;
  }
  return problems == 0 ? 0 : 1;
}

}  // namespace
}  // namespace megascale::chaos

int main(int argc, char** argv) { return megascale::chaos::Main(argc, argv); }
