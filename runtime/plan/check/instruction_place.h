// Checks where one instruction of a rank's plan is: its chunk, micro-batch, group and other end.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/check/rank_index.h"

namespace megascale::plan {

// Checks that the operation belongs to this kind of plan, uses a chunk of this rank, names a
// micro-batch exactly if it belongs to one, and communicates in the right group with a chunk that
// exists. Errors: InvalidArgument.
absl::Status CheckPlace(const RankIndex& index, const Instruction& instruction);

}  // namespace megascale::plan
