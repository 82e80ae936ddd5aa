// The what-if analysis of stragglers: how long would the steps have taken if every operation had
// taken as long as the others of its kind, and how much time does each part of the job cost by its
// deviation from that? Pure functions.
//
//   const WhatIf result = AnalyzeSteps(graph, steps);
//   result.slowdown;         // S: 1.97 = steps take 1.97 times what they would without stragglers
//   result.by_stage.all[3];  // the same if only stage 3 had its measured times
//
// Source: Lin et al., OSDI '25 ("Understanding Stragglers in Large Model Training Using What-if
// Analysis"), equations 1 to 5; the definitions reproduce the authors' published results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/diagnose/operation_graph.h"

namespace megascale::diagnose {

struct MeasuredStep {
  int64_t step = 0;
  double seconds = 0;         // as it was measured
  OperationTimes times = {};  // delays do not count unless `delays_are_work`
};

struct WhatIfOptions {
  // Delays belong to the work of the operation: a stopped or throttled process starts late. The
  // published analysis leaves them out.
  bool delays_are_work = false;
  // At most this many workers are replayed one by one for their own slowdown; with more workers a
  // worker's slowdown is the smaller of its replica's and its stage's, as published.
  int exact_workers_max = 0;
};

// Slowdowns of parts of the job: what remains if only this part had its measured times. 1: the part
// costs nothing.
struct Decomposition {
  std::vector<std::string> names;             // of the parts
  std::vector<double> all;                    // by part: over all steps
  std::vector<std::vector<double>> per_step;  // by step, then by part
};

// How much of the lost time comes back if some operations have their ideal times.
struct Recovery {
  double seconds_without = 0;  // mean step with these operations ideal and the others as measured
  double share = 0;            // of (actual - ideal); can exceed 1
  // By step; the shares of a step that lost nothing are 0. The seconds' mean is `seconds_without`,
  // and `share` is the mean of the steps' shares, weighted with what each of them lost.
  std::vector<double> seconds_per_step = {};
  std::vector<double> share_per_step = {};
};

struct WhatIf {
  std::vector<int64_t> steps;
  std::vector<double> measured_seconds;  // by step
  std::vector<double> actual_seconds;    // replayed with measured times, without delays
  std::vector<double> ideal_seconds;     // replayed with ideal times
  double launch_slowdown = 1;            // mean measured / mean actual: what the replay leaves out
  double slowdown = 1;                   // S: mean actual / mean ideal
  Decomposition by_kind;                 // S_t, by label of the kinds
  Decomposition by_replica;
  Decomposition by_stage;
  Decomposition by_worker;            // S_w
  bool has_exact_workers = false;     // each worker was replayed on its own
  std::vector<int> slowest_workers;   // indices: the slowest 3 %, at least one
  Recovery fix_slowest_workers;       // M_W
  Recovery fix_last_stage;            // M_S
  std::vector<double> ideal_of_kind;  // seconds, by kind

  double mean_actual() const;
  double mean_ideal() const;
};

// Chooses operations by their index.
using Choice = std::function<bool(size_t operation)>;

// Requires: `steps` is not empty and belongs to `graph`. Cost: a replay of every step for each
// label, replica and stage, and for each worker if they are exact.
WhatIf AnalyzeSteps(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                    const WhatIfOptions& options = {});

// Returns how much time comes back if the chosen operations have their ideal times. Requires:
// `result` is that of AnalyzeSteps with the same other arguments. Cost: a replay of every step.
Recovery FixOperations(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                       const WhatIfOptions& options, const WhatIf& result, const Choice& chosen);

// Returns the mean seconds of a step if the chosen operations took no time, and the others their
// measured times. For time that should be hidden altogether, such as loading.
double MeanWithout(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                   const WhatIfOptions& options, const Choice& chosen);

}  // namespace megascale::diagnose
