// The plans of a whole mesh, one for each role. A rank's role is its pipeline stage: all that it
// does follows from that, because groups and peers are symbols. So the plans of 12,288 ranks cost
// what those of 64 cost, and ValidateRolePlans (validate.h) proves them for every rank.
//
//   ASSIGN_OR_RETURN(std::vector<RankPlan> roles, BuildRolePlans({.mesh = mesh}));
//   RETURN_IF_ERROR(ValidateRolePlans(roles));
//   const RankPlan mine = PlanOfRank(roles, rank);
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/step_plan.h"

namespace megascale::plan {

// The plan of each stage, in order, as the stage's first rank (data 0, tensor 0) has it.
// Errors: those of BuildTrainPlan.
absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options);

// The plan of `rank`: its role's, at its own place in the mesh. What BuildTrainPlan gives for it.
// Requires: `roles` as BuildRolePlans gives them, `rank` in their mesh.
RankPlan PlanOfRank(absl::Span<const RankPlan> roles, int rank);

// Proves of `groups`, rank by rank, what makes one plan serve every rank of a stage:
// - every rank is in exactly one group of each kind, at the index and under the name that Mesh has
//   for it, and no two groups share a name;
// - a data, tensor or stage group is as large as Mesh says, and all of its members are of one
//   stage;
// - a pipeline group has one member of each stage, the one of stage s at index s, and each of its
//   members finds each other one where the group has it;
// - the group of the world has all ranks.
// Cost: O(ranks x stages) additions; some milliseconds for 12,288 ranks.
// Errors: Internal - names the group and the rank.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups);

}  // namespace megascale::plan
