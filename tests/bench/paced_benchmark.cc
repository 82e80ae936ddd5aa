// Pipeline schedules by the wall clock, each beside the formula of its bubble and the longest path
// over its plan: what a schedule promises, paced in real processes by the code that trains
// (paced_step.h). Fails where the median step is off by more than 3 %.
//
//   paced_benchmark                  every schedule, links without time
//   paced_benchmark --overlap        one layout with each overlap in turn, links with time
//
// With --json, one object for each line.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/base/check.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/plan_options.h"
#include "tests/bench/paced_step.h"

namespace megascale::bench {
namespace {

using plan::OpKind;
using plan::Schedule;
using Times = std::map<OpKind, double>;  // milliseconds; what is not listed takes none

constexpr double kDifferenceMax = 0.03;

struct Flags {
  int data = 2;
  int pipeline = 4;
  int microbatches = 8;
  int spare_slots = 1;  // as jobs have
  int steps = 15;
  bool overlap = false;
  bool json = false;
};

struct Case {
  std::string name;
  plan::PlanOptions plan;
  Times times;
  std::optional<double> formula;  // of the step, milliseconds
};

struct Outcome {
  double simulated = 0;  // milliseconds
  double measured = 0;   // median
  // The relative difference between the measured and the simulated step.
  double difference() const { return measured / simulated - 1; }
};

simulate::DurationOf DurationOf(const Times& times) {
  return [times](const plan::RankPlan&, const plan::Instruction& instruction) -> int64_t {
    const auto time = times.find(instruction.kind());
    return time == times.end() ? 0 : std::llround(1e6 * time->second);
  };
}

Outcome Measure(const Case& given, int num_steps) {
  const simulate::DurationOf duration = DurationOf(given.times);
  const std::vector<plan::RankPlan> roles = plan::BuildRolePlans(given.plan).value();
  const auto steps = RunPaced({.plan = given.plan, .duration = duration, .num_steps = num_steps});
  MEGASCALE_CHECK_MSG(steps.ok(), steps.status().ToString());
  std::vector<double> millis;
  for (const absl::Duration step : *steps) millis.push_back(absl::ToDoubleMilliseconds(step));
  std::nth_element(millis.begin(), millis.begin() + num_steps / 2, millis.end());
  return {.simulated = static_cast<double>(simulate::TimeStep(roles, duration)->end) / 1e6,
          .measured = millis[static_cast<size_t>(num_steps / 2)]};
}

plan::PlanOptions Shape(const Flags& flags, Schedule schedule, int chunks) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.data = flags.data, .pipeline = flags.pipeline}).value();
  options.schedule = schedule;
  options.chunks_per_stage = chunks;
  options.num_microbatches = flags.microbatches;
  options.spare_slots = flags.spare_slots;
  return options;
}

// All cases have the same model: a stage takes 10 ms forward and 20 ms backward, half of it for the
// weights' gradients.
std::vector<Case> Schedules(const Flags& flags) {
  constexpr double kForward = 10;
  constexpr double kBackward = 20;
  constexpr double kWeights = 10;
  const double work = flags.microbatches * (kForward + kBackward);
  const double stages = flags.pipeline - 1;
  const Times whole = {{OpKind::kForward, kForward}, {OpKind::kBackward, kBackward}};
  std::vector<Case> cases;
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B}) {
    cases.push_back({std::string(Name(schedule)), Shape(flags, schedule, 1), whole,
                     work + stages * (kForward + kBackward)});
  }
  const int chunks = 2;
  cases.push_back({absl::StrFormat("%s, %d chunks", Name(Schedule::kInterleaved1F1B), chunks),
                   Shape(flags, Schedule::kInterleaved1F1B, chunks),
                   {{OpKind::kForward, kForward / chunks}, {OpKind::kBackward, kBackward / chunks}},
                   work + stages * (kForward + kBackward) / chunks});
  cases.push_back({std::string(Name(Schedule::kZeroBubbleH1)),
                   Shape(flags, Schedule::kZeroBubbleH1, 1),
                   {{OpKind::kForward, kForward},
                    {OpKind::kBackward, kBackward - kWeights},
                    {OpKind::kWeightGradient, kWeights}},
                   work + stages * (kForward + kBackward - 2 * kWeights)});
  return cases;
}

// Cases as in MegaScale's table 3: first without overlap, then with one more overlap in each row;
// and each overlap alone missing.
std::vector<Case> Overlaps(const Flags& flags) {
  const Times times = {{OpKind::kLoadBatch, 5},        {OpKind::kForward, 5},
                       {OpKind::kBackward, 10},        {OpKind::kSendActivation, 2},
                       {OpKind::kSendGradient, 2},     {OpKind::kGatherParameters, 10},
                       {OpKind::kReduceGradients, 20}, {OpKind::kOptimizerStep, 2}};
  const std::pair<const char*, plan::Overlap> rows[] = {
      {"none", {.grad_reduce = false, .param_gather = false, .p2p_communication = false}},
      {"p2p", {.grad_reduce = false, .param_gather = false}},
      {"p2p+grad", {.param_gather = false}},
      {"all", {}},
      {"all-grad", {.grad_reduce = false}},
      {"all-p2p", {.p2p_communication = false}}};
  std::vector<Case> cases;
  for (const auto& [name, overlap] : rows) {
    Case one = {name, Shape(flags, Schedule::kInterleaved1F1B, 2), times, std::nullopt};
    one.plan.overlap = overlap;
    if (!overlap.p2p_communication) one.plan.spare_slots = 0;
    cases.push_back(std::move(one));
  }
  return cases;
}

void Print(const Case& given, const Outcome& outcome, bool json) {
  if (json) {
    nlohmann::json line = {{"name", given.name},
                           {"simulated_ms", outcome.simulated},
                           {"measured_ms", outcome.measured}};
    if (given.formula.has_value()) line["formula_ms"] = *given.formula;
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::string formula;
    if (given.formula.has_value()) formula = absl::StrFormat("%11.2f  ", *given.formula);
    std::printf("%-26s  %s%13.2f  %12.2f  %+8.2f %%\n", given.name.c_str(), formula.c_str(),
                outcome.simulated, outcome.measured, 100 * outcome.difference());
  }
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Paces pipeline schedules by the wall clock.");
  const auto positive = CLI::Range(1, 64);
  app.add_option("--data", flags.data, "replicas")->capture_default_str()->check(positive);
  app.add_option("--pipeline", flags.pipeline, "stages")
      ->capture_default_str()
      ->check(CLI::Range(2, 64));
  app.add_option("--microbatches", flags.microbatches, "a multiple of the stages")
      ->capture_default_str()
      ->check(positive);
  app.add_option("--spare-slots", flags.spare_slots,
                 "that a chunk which receives has beyond its schedule's")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  app.add_option("--steps", flags.steps, "that count")->capture_default_str()->check(positive);
  app.add_flag("--overlap", flags.overlap, "overlaps in place of schedules");
  app.add_flag("--json", flags.json, "for programs");
  CLI11_PARSE(app, argc, argv);
  if (flags.microbatches % flags.pipeline != 0) {
    std::fprintf(stderr, "--microbatches: %d is not a multiple of --pipeline = %d\n",
                 flags.microbatches, flags.pipeline);
    return 2;
  }
  if (!flags.json) {
    std::printf("data %d x pipeline %d: %d processes, %d micro-batches, median of %d steps\n",
                flags.data, flags.pipeline, flags.data * flags.pipeline, flags.microbatches,
                flags.steps);
    std::printf("%-26s  %s%13s  %12s  %10s\n", flags.overlap ? "overlap" : "schedule",
                flags.overlap ? "" : "formula, ms  ", "simulated, ms", "measured, ms",
                "difference");
  }
  bool as_stated = true;
  for (const Case& given : flags.overlap ? Overlaps(flags) : Schedules(flags)) {
    const Outcome outcome = Measure(given, flags.steps);
    Print(given, outcome, flags.json);
    as_stated &= std::abs(outcome.difference()) <= kDifferenceMax;
    if (given.formula.has_value()) {
      as_stated &= std::abs(outcome.measured / *given.formula - 1) <= kDifferenceMax;
    }
  }
  if (!as_stated) {
    std::fprintf(stderr, "a median step is off by more than %.0f %%; was the machine busy?\n",
                 100 * kDifferenceMax);
  }
  return as_stated ? 0 : 1;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) { return megascale::bench::Main(argc, argv); }
