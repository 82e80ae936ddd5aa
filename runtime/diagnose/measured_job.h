// A running job's measured steps in the form that what_if.h analyses: the instructions of the plan
// with their dependencies, and what each rank measured; and in the form that stall.h walks. Pure
// functions.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/stall.h"
#include "runtime/diagnose/what_if.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/measured_step.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::diagnose {

struct MeasuredJob {
  OperationGraph graph;  // workers are the known ranks, in order
  std::vector<MeasuredStep> steps;
};

// How a job's own steps are analysed. Delays count as work, because a rank that is stopped or
// throttled begins late. Up to 64 ranks are replayed one by one.
inline constexpr WhatIfOptions kMeasuredJobOptions = {.delays_are_work = true,
                                                      .exact_workers_max = 64};

// Makes the input of the analysis from the whole steps among `steps`. A pass of tensor-parallel
// ranks becomes two operations: what the rank computes, and the exchanges that end it. Operations
// are comparable if they do the same to equal buffers; passes of different chunks are comparable,
// too. `known`: by rank, whether its spans are there. Requires: `steps` come from
// timeline::MeasureSteps with these plans. Errors: InvalidArgument - no step is whole.
absl::StatusOr<MeasuredJob> JobOfSteps(absl::Span<const plan::RankPlan> plans,
                                       const std::vector<bool>& known,
                                       absl::Span<const timeline::TimedStep> steps);

// Returns the plan of a batch of an evaluation, for the first rank of the rank's stage; null: it is
// not known. The plan outlives the positions.
using EvaluationPlanOf = std::function<const plan::RankPlan*(int rank)>;

// Returns where each rank stands: in the newest step that it has begun, or in a batch of the
// evaluation after that step. The position of a rank follows from its own spans, so that a machine
// which reports nonsense moves only its own ranks. Exceptions: a rank that has ended its step, or
// its batch, stands before the next batch if another rank has begun it; a rank of which some spans
// of the evaluation were overwritten counts as in the newest batch of the others. A rank that shows
// no step is not known. Requires: `ranks` are by rank, like `plans`.
std::vector<RankPosition> PositionsOf(absl::Span<const plan::RankPlan> plans,
                                      absl::Span<const timeline::RankSpans> ranks,
                                      const EvaluationPlanOf& evaluation_plan_of = nullptr);

}  // namespace megascale::diagnose
