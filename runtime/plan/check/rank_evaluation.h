// Checks one rank's part of an evaluation: every micro-batch passes every chunk once, with the
// windows and the weights that it needs, and the losses are exchanged after all passes.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/check/rank_index.h"

namespace megascale::plan {

// Errors: InvalidArgument - the plan computes something else; names the instruction.
absl::Status CheckRankEvaluation(const RankIndex& index);

}  // namespace megascale::plan
