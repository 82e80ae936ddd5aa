// Checks one rank's use of memory: an activation slot never holds two micro-batches at once, and a
// gradient buffer never holds two sums.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/check/rank_index.h"

namespace megascale::plan {

// Checks that a slot holds one micro-batch at a time; that a gradient buffer holds the gradients of
// one chunk at a time, or with ZeRO stage 2 of one bucket; that each sum is reduced once; and that
// all declared memory is used. Requires: CheckRankStep(index) is OK. Errors: InvalidArgument -
// names the rank and the instruction.
absl::Status CheckRankMemory(const RankIndex& index);

}  // namespace megascale::plan
