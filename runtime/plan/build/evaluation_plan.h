// The plan of one batch of an evaluation for one rank: the loss on windows of held-out text, with
// the weights after a training step, in the layout of the training.
//
// - load the windows, and meanwhile gather the parameters;
// - run every micro-batch forward through every chunk, in the order in which the training's
//   schedule runs its forwards, in the same activation slots;
// - all ranks add up losses and numbers of windows as they add up norms: in the tensor, then the
//   data, then the pipeline group.
//
// An evaluation runs the plan once for each batch of train.global_batch_size windows. It uses no
// gradient buffers and changes no state, so the training computes the same bits with and without
// evaluations. Transfers overlap with passes whatever PlanOptions::overlap says.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/plan/plan_options.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Builds the plan of `rank`. A pure function. Errors: those of BuildTrainPlan.
absl::StatusOr<RankPlan> BuildEvaluationPlan(const PlanOptions& options, int rank);

}  // namespace megascale::plan
