#include "runtime/plan/build/roles.h"

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::plan {
absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options) {
  std::vector<RankPlan> roles;
  for (int stage = 0; stage < options.mesh.pipeline_size(); ++stage) {
    ASSIGN_OR_RETURN(RankPlan role,
                     BuildTrainPlan(options, options.mesh.RankOf({.pipeline = stage})));
    roles.push_back(std::move(role));
  }
  return roles;
}

RankPlan PlanOfRank(absl::Span<const RankPlan> roles, int rank) {
  MEGASCALE_CHECK(!roles.empty() && roles[0].mesh.Contains(rank));
  RankPlan plan = roles[static_cast<size_t>(roles[0].mesh.CoordinateOf(rank).pipeline)];
  plan.rank = rank;
  return plan;
}

}  // namespace megascale::plan
