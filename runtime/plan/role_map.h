// Roles: all ranks of one role run the same list of instructions. The list is planned and proved
// once, for the role's first rank (build/roles.h, check/validate_roles.h).
//
// Instructions name groups and peers relative to the rank, so today's plans depend on the pipeline
// stage alone, and RoleMap::ByStage assigns their roles. If plans differed along another axis, too,
// such as experts, they would need ByAxes, and nothing else would change.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

class RoleMap {
 public:
  // The ranks of a pipeline stage have one role, with the stage's number.
  static RoleMap ByStage(const Mesh& mesh);
  // Ranks with equal positions on all of these axes have one role.
  static RoleMap ByAxes(const Mesh& mesh, AxisSet axes);
  // `role_of_rank`: by rank, any number; ranks with equal numbers have one role. Roles are numbered
  // from 0, in the order of their first ranks.
  static RoleMap Of(absl::Span<const int> role_of_rank);

  int num_roles() const { return static_cast<int>(first_ranks_.size()); }
  int num_ranks() const { return static_cast<int>(roles_.size()); }
  // Requires: the rank, or the role, exists.
  int RoleOf(int rank) const { return roles_[static_cast<size_t>(rank)]; }
  int FirstRankOf(int role) const { return first_ranks_[static_cast<size_t>(role)]; }

  // True if `plans` has the plan of each role's first rank, in the order of the roles, and their
  // mesh has num_ranks() ranks.
  bool AreTemplates(absl::Span<const RankPlan> plans) const;

 private:
  std::vector<int> roles_;        // by rank
  std::vector<int> first_ranks_;  // by role
};

}  // namespace megascale::plan
