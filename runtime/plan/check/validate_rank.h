// Proves that one rank's list of instructions is correct before it runs, apart from its meetings
// with other ranks. Errors are InvalidArgument and name the rank and the instruction's id.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Checks what the executor requires of one rank's plan, independent of the meaning of its
// operations: there is at least one instruction; ids are unique; dependencies exist and, together
// with the order on each stream, have no cycle; each stream belongs to one owner; each channel is
// used from one stream, with a peer in its group; activation slots are in range.
absl::Status ValidateRankPlan(const RankPlan& plan);

// Runs all checks of one rank's part of a training step that do not need the other ranks:
// ValidateRankPlan, CheckRankStep and CheckRankMemory.
absl::Status ValidateRankStep(const RankPlan& plan);

}  // namespace megascale::plan
