// Checks one rank's list of instructions as its part of a training step: what it computes, sends,
// reduces and updates, and in which order. rank_memory.h checks its memory.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/check/rank_index.h"

namespace megascale::plan {

// Checks that:
// - the chunk, micro-batch, bucket and group of each instruction are possible for its operation;
// - every micro-batch passes every chunk of the rank once forward and once backward;
// - each bucket is gathered before its chunk's passes and reduced after them, and the chunk's
//   parameters are updated after the norm;
// - each instruction waits for the instructions that make its input.
// Errors: InvalidArgument - names the rank and the instruction.
absl::Status CheckRankStep(const RankIndex& index);

}  // namespace megascale::plan
