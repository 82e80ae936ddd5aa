// Proves, before a training step runs, that the plans of all ranks together are a correct step.
// Errors are InvalidArgument and name the rank and the instruction's id.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Checks the plans of all ranks of one mesh, in rank order, as one training step:
// - each plan passes ValidateRankPlan;
// - every micro-batch passes every chunk once forward and once backward, on the chunk's stage;
// - data is produced before it is used: the dependencies and streams of a rank alone make each
//   instruction wait for the instructions that produce its input;
// - a slot holds one micro-batch at a time, and all declared slots are used;
// - a gradient buffer holds the gradients of one chunk at a time, or with ZeRO stage 2 of one
//   bucket: a pass that begins a sum waits for the reduction of the previous sum, each pass adds to
//   the sum of its own chunk or bucket, and each sum is reduced once;
// - sends and receives pair up, and collectives meet, in one order per channel, with equal bytes;
// - there is no deadlock when all ranks run with rendezvous: a send and its receive, or all members
//   of a collective, end only once all of them have begun. This is the strictest assumption. A plan
//   that passes with it also ends if sends are buffered.
//
// Cost: O(instructions); about a second for a million.
absl::Status ValidatePlans(absl::Span<const RankPlan> plans);

// Checks that `plan` belongs to the same step as `first`: they have the same mesh, numbers of
// chunks and micro-batches, and sharding of gradients.
absl::Status CheckSameStep(const RankPlan& plan, const RankPlan& first);

}  // namespace megascale::plan
