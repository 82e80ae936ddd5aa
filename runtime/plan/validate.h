// Proves that plans are right before anything runs them. Errors are InvalidArgument and name the
// rank and the instruction's id.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"

namespace megascale::plan {

// What the executor needs of one rank's plan, whatever its operations mean: at least one
// instruction; ids occur once; dependencies exist and, with the order on each stream, make no
// cycle; each stream belongs to one owner; each channel is used from one stream, with a peer in its
// group; activation slots are in range.
absl::Status ValidateRankPlan(const RankPlan& plan);

// The plans of all ranks of one mesh, in rank order, as one training step:
// - each plan passes ValidateRankPlan;
// - every micro-batch passes every chunk once forward and once backward, on the chunk's stage;
// - nothing is used before it is made: each instruction waits, through its rank's dependencies and
//   streams alone, for what makes its input;
// - a slot holds one micro-batch at a time, and all declared slots are used;
// - sends and receives pair up, and collectives meet, in one order per channel, with equal bytes;
// - no deadlock: a run of all ranks in which a send and its receive, or all members of a
//   collective, end only once all of them have begun. This is the strictest reading: a plan that
//   ends so ends with buffered sends as well.
// Cost: O(instructions); about a second for a million.
absl::Status ValidatePlans(absl::Span<const RankPlan> plans);

}  // namespace megascale::plan
