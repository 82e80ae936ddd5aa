// Which ranks of a mesh run the same list of instructions. Ranks of one role do; the list is
// planned and proved once, for the role's first rank (build/roles.h, check/validate_roles.h).
//
// Instructions name groups and peers relative to the rank, so today's plans depend on the pipeline
// stage alone: RoleMap::ByStage. That is one way to assign roles. A plan that differs by another
// axis, such as experts, needs ByAxes, and nothing else.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

class RoleMap {
 public:
  // The ranks of a pipeline stage have one role, whose number is that of the stage.
  static RoleMap ByStage(const Mesh& mesh);
  // Ranks with equal positions on all of these axes have one role.
  static RoleMap ByAxes(const Mesh& mesh, AxisSet axes);
  // By rank: any numbers; ranks with equal numbers have one role. Roles are counted from 0 by their
  // first rank.
  static RoleMap Of(absl::Span<const int> role_of_rank);

  int num_roles() const { return static_cast<int>(first_ranks_.size()); }
  int num_ranks() const { return static_cast<int>(roles_.size()); }
  // Requires: the rank, or the role, exists.
  int RoleOf(int rank) const { return roles_[static_cast<size_t>(rank)]; }
  int FirstRankOf(int role) const { return first_ranks_[static_cast<size_t>(role)]; }

  // True if `plans` has the plan of each role's first rank, in the order of the roles, in a mesh of
  // these ranks.
  bool AreTemplates(absl::Span<const RankPlan> plans) const;

 private:
  std::vector<int> roles_;        // by rank
  std::vector<int> first_ranks_;  // by role
};

}  // namespace megascale::plan
