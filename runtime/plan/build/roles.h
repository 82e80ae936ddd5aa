// The plans of a whole mesh, one template for each role (role_map.h). So plans for 12,288 ranks
// cost as much as plans for 64 ranks, and ValidateRolePlans (check/validate_roles.h) proves the
// templates for every rank.
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
#include "runtime/plan/role_map.h"

namespace megascale::plan {

// Builds the plan of each role, in order, for its first rank: of a training step, or with
// PlanOptions::evaluates of an evaluation. Errors: those of BuildTrainPlan;
// InvalidArgument - a role has ranks of several stages, whose instructions differ.
absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options,
                                                     const RoleMap& roles);
// The same with RoleMap::ByStage.
absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options);

// Returns the plan of `rank`, which is its role's plan with this rank's place in the mesh. It
// equals the plan from BuildTrainPlan. Requires: `templates` came from BuildRolePlans with the same
// roles, and `rank` is in their mesh.
RankPlan PlanOfRank(absl::Span<const RankPlan> templates, const RoleMap& roles, int rank);
// The same for templates by stage.
RankPlan PlanOfRank(absl::Span<const RankPlan> templates, int rank);

// Returns the order in which `rank` launches its communication (check/launch_order.h), proven for
// all ranks. Every rank computes the same orders, of all stages, and uses the order of its own
// stage. Errors: those of BuildTrainPlan, LaunchOrders and CheckLaunchOrders.
absl::StatusOr<std::vector<int>> LaunchOrderOf(const PlanOptions& options, int rank);

}  // namespace megascale::plan
