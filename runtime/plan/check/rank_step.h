// One rank's list as its part of a training step: what it computes, sends, reduces and steps, and
// in which order. Whether its memory suffices is checked in rank_memory.h.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/check/rank_index.h"

namespace megascale::plan {

// Checks that:
// - each operation is of a chunk, micro-batch and bucket that it can be of, in its group;
// - every micro-batch passes every chunk of the rank once forward and once backward;
// - each bucket is gathered before its chunk's passes, reduced after them, and the chunk stepped
//   after the norm;
// - each instruction waits for those that make its input.
// Errors: InvalidArgument - names the rank and the instruction.
absl::Status CheckRankStep(const RankIndex& index);

}  // namespace megascale::plan
