// Why steps are slow: finds the worker, stage, link or wait that explains the time that a what-if
// analysis finds lost. Pure functions; the caller puts the verdict into words.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/slow_change.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::diagnose {

enum class SlowCause {
  kNone,            // the slowdown is below kSlowdownMin
  kOneWorker,       // one worker computes slower than those with the same work
  kUnequalStages,   // one pipeline stage takes longer to compute than the others
  kSlowerStage,     // the same, but not because of its layers: it was not so before, or by the plan
  kSlowLink,        // transfers between two workers take longer than between others
  kSlowCollective,  // collectives take long in some steps, or on some workers
  kSlowMachine,     // all workers of a machine have begun to compute slower
  kSlowMachineLink,  // the exchanges of a machine with others have begun to take longer
  kLateWorker,       // the exchanges of one worker, and of no other, have begun to take longer
  kDataWait,         // workers wait for the data to train on
  kJitter,           // operations take different times from step to step, on changing workers
  kUnknown,          // the steps lose time, and no single part explains it
};

// A slowdown below this is normal. Source: the OSDI '25 paper counts a job as straggling from 1.1.
inline constexpr double kSlowdownMin = 1.1;

// A cause that was considered. Fields that do not apply keep their defaults.
struct Suspect {
  SlowCause cause = SlowCause::kUnknown;
  // Index of the worker. kUnequalStages, kSlowerStage: set if the stage has only this worker.
  // kDataWait: set if the loads of this worker alone, or of its machine's workers, cost nearly what
  // all loads cost. kSlowMachine, kSlowMachineLink: the first one on the machine.
  int worker = -1;
  bool is_machine = false;  // kDataWait: the machine of the worker is meant
  int peer = -1;            // index: the other end of the link
  int stage = -1;
  std::string label = "";  // of the collective's kind
  // Share of the lost time that comes back without this cause; for kDataWait the share of the step.
  double share = 0;
  double times_slower = 1;  // than the others
  // For kOneWorker: the worker's slowdown stands out from all other workers' slowdowns, and is the
  // largest in two thirds of the steps; part of it is computing. The worker need not be late within
  // exchanges in each of these steps.
  bool stands_out = false;
  // If found by comparison with older steps: how many times as long a step takes now; else 0.
  double step_times = 0;
  bool has_witnesses = false;  // as in SlowChange
  int num_workers = 0;         // kSlowMachine: as in SlowChange
  // kSlowerStage: how many times as long as the others it computed before, or should by the plan;
  // or how many times as long a step takes as usual. The two that do not tell are 0.
  double times_before = 0;
  double times_planned = 0;
  double times_usual = 0;
};

struct SlowVerdict {
  Suspect cause;
  std::vector<Suspect> excluded;  // the other suspects, the largest share first
  double slowdown = 1;            // S
  double lost_seconds = 0;        // of a step
  double step_seconds = 0;        // mean, as measured
  bool grows = false;             // the newest steps take longer than the oldest by 10 % or more
  // How many times as long a step takes as older ones; 1: not longer, or not compared.
  double step_times = 1;
};

// Requires: `result` is that of AnalyzeSteps with the other arguments; `history` is empty or as
// FindChange requires it. What has changed since older steps counts more than what differs between
// ranks: stages that were equal have not become unequal, nor do those that are equal by the plan.
// Cost: a few replays of every step.
SlowVerdict ExplainSlowness(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                            const WhatIfOptions& options, const WhatIf& result,
                            const History& history = {});

}  // namespace megascale::diagnose
