// Measures the cost of planning a whole job: MegaScale's 175B step (8 stages of 6 chunks, tensor 8,
// 32 micro-batches) over 64 to 12,288 ranks. It plans by roles and, up to the given number of
// ranks, also with a plan for every rank; both validate all ranks.
//
//   plan_benchmark --every-rank 512
//
// Seconds are the minimum of a few runs; memory is the process's peak when the line is printed.
#include <sys/resource.h>

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "runtime/base/benchmark_timer.h"
#include "runtime/base/check.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/check/validate_roles.h"
#include "runtime/plan/check/validate_step.h"
#include "runtime/plan/plan_options.h"

namespace megascale::bench {
namespace {

constexpr double kMillis = 1e3;

plan::PlanOptions StepOf(int data) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.data = data, .pipeline = 8, .tensor = 8}).value();
  options.schedule = plan::Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 6;
  options.num_microbatches = 32;
  return options;
}

double PeakMebibytes() {
  rusage usage = {};
  MEGASCALE_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void MeasureRoles(int data, int repeats) {
  const plan::PlanOptions options = StepOf(data);
  const int last = options.mesh.world_size() - 1;
  const base::Tries tries = {.seconds = 0, .least = repeats};
  std::vector<plan::RankPlan> roles;
  const double one =
      base::LeastSeconds(tries, [&] { MEGASCALE_CHECK(plan::BuildTrainPlan(options, last).ok()); });
  const double all =
      base::LeastSeconds(tries, [&] { roles = plan::BuildRolePlans(options).value(); });
  const double valid =
      base::LeastSeconds(tries, [&] { MEGASCALE_CHECK(plan::ValidateRolePlans(roles).ok()); });
  size_t num_instructions = 0;
  for (const plan::RankPlan& role : roles) num_instructions += role.instructions.size();
  std::printf("%6d  by roles    %10zu  %10.2f  %10.2f  %10.2f  %8.0f\n", options.mesh.world_size(),
              num_instructions, one * kMillis, all * kMillis, valid * kMillis, PeakMebibytes());
}

void MeasureEveryRank(int data) {
  const plan::PlanOptions options = StepOf(data);
  std::vector<plan::RankPlan> plans;
  const double all = base::LeastSeconds({.seconds = 0}, [&] {
    plans.clear();
    for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
      plans.push_back(plan::BuildTrainPlan(options, rank).value());
    }
  });
  const double valid =
      base::LeastSeconds({.seconds = 0}, [&] { MEGASCALE_CHECK(plan::ValidatePlans(plans).ok()); });
  size_t num_instructions = 0;
  for (const plan::RankPlan& plan : plans) num_instructions += plan.instructions.size();
  std::printf("%6d  every rank  %10zu  %10s  %10.2f  %10.2f  %8.0f\n", options.mesh.world_size(),
              num_instructions, "", all * kMillis, valid * kMillis, PeakMebibytes());
}

int Main(int argc, char** argv) {
  int every_rank = 512;
  int repeats = 5;
  CLI::App app("Times plans of whole jobs.");
  app.add_option("--every-rank", every_rank, "ranks of the largest job of which all plans are made")
      ->capture_default_str();
  app.add_option("--repeats", repeats, "of what is done by roles")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::printf("%6s  %-10s  %10s  %10s  %10s  %10s  %8s\n", "ranks", "planned", "instr.", "one, ms",
              "build, ms", "prove, ms", "MiB");
  for (const int data : {1, 8, 64, 192}) MeasureRoles(data, repeats);
  for (const int data : {1, 8, 64, 192}) {
    if (StepOf(data).mesh.world_size() <= every_rank) MeasureEveryRank(data);
  }
  return 0;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) { return megascale::bench::Main(argc, argv); }
