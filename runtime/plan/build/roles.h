// The plans of a whole mesh, one for each role. A rank's role is its pipeline stage, which
// determines all of its instructions, because they name groups and peers relative to the rank. So
// the plans of 12,288 ranks cost what those of 64 cost, and ValidateRolePlans (validate.h) proves
// them for every rank.
//
//   ASSIGN_OR_RETURN(std::vector<RankPlan> roles, BuildRolePlans({.mesh = mesh}));
//   RETURN_IF_ERROR(ValidateRolePlans(roles));
//   const RankPlan mine = PlanOfRank(roles, rank);
#pragma once

#include <vector>

#include "absl/status/status.h"
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

// Checks `groups` rank by rank for the properties that let one plan serve every rank of a stage:
// - every rank is in exactly one group of each kind, with the index and the name that Mesh gives,
//   and no two groups share a name;
// - a data, tensor or stage group is as large as Mesh says, and all of its members are of one
//   stage;
// - a pipeline group has one member of each stage, that of stage s at index s, and every member
//   finds the others at these indices;
// - the world group has all ranks.
// Cost: O(ranks x stages) additions; some milliseconds for 12,288 ranks.
// Errors: Internal - names the group and the rank.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups);

}  // namespace megascale::plan
