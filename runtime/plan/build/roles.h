// The plans of a whole mesh, one for each role. A rank's role is its pipeline stage, which
// determines all of its instructions, because they name groups and peers relative to the rank. So
// the plans of 12,288 ranks cost what those of 64 cost, and ValidateRolePlans
// (check/validate_roles.h) proves them for every rank.
//
//   ASSIGN_OR_RETURN(std::vector<RankPlan> roles, BuildRolePlans({.mesh = mesh}));
//   RETURN_IF_ERROR(ValidateRolePlans(roles));
//   const RankPlan mine = PlanOfRank(roles, rank);
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/mesh.h"

namespace megascale::plan {

// Builds the plan of each stage, in order, for the stage's first rank (data 0, tensor 0). Errors:
// those of BuildTrainPlan.
absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options);

// Returns the plan of `rank`, equal to what BuildTrainPlan gives: its role's plan with its own
// place in the mesh. Requires: `roles` came from BuildRolePlans, and `rank` is in their mesh.
RankPlan PlanOfRank(absl::Span<const RankPlan> roles, int rank);

}  // namespace megascale::plan
