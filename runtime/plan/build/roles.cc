#include "runtime/plan/build/roles.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/plan/build/evaluation_plan.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/check/launch_order.h"

namespace megascale::plan {
namespace {

absl::StatusOr<RankPlan> BuildRankPlan(const PlanOptions& options, int rank) {
  return options.evaluates ? BuildEvaluationPlan(options, rank) : BuildTrainPlan(options, rank);
}

RankPlan InPlaceOf(RankPlan plan, int rank) {
  plan.rank = rank;
  return plan;
}

}  // namespace

absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options,
                                                     const RoleMap& roles) {
  MEGASCALE_CHECK(roles.num_ranks() == options.mesh.world_size());
  const auto stage_of = [&](int rank) { return options.mesh.CoordinateOf(rank).pipeline; };
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const int first = roles.FirstRankOf(roles.RoleOf(rank));
    if (stage_of(rank) == stage_of(first)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "role ", roles.RoleOf(rank), " has rank ", first, " of stage ", stage_of(first),
        " and rank ", rank, " of stage ", stage_of(rank), "; expected ranks of one stage"));
  }
  std::vector<RankPlan> templates;
  for (int role = 0; role < roles.num_roles(); ++role) {
    ASSIGN_OR_RETURN(RankPlan plan, BuildRankPlan(options, roles.FirstRankOf(role)));
    templates.push_back(std::move(plan));
  }
  return templates;
}

absl::StatusOr<std::vector<RankPlan>> BuildRolePlans(const PlanOptions& options) {
  return BuildRolePlans(options, RoleMap::ByStage(options.mesh));
}

RankPlan PlanOfRank(absl::Span<const RankPlan> templates, const RoleMap& roles, int rank) {
  MEGASCALE_CHECK(static_cast<int>(templates.size()) == roles.num_roles());
  MEGASCALE_CHECK(rank >= 0 && rank < roles.num_ranks());
  return InPlaceOf(templates[static_cast<size_t>(roles.RoleOf(rank))], rank);
}

RankPlan PlanOfRank(absl::Span<const RankPlan> templates, int rank) {
  MEGASCALE_CHECK(!templates.empty() && templates[0].mesh.Contains(rank));
  // The number of the role is that of the stage; the map of all ranks is not needed.
  return InPlaceOf(templates[static_cast<size_t>(templates[0].mesh.CoordinateOf(rank).pipeline)],
                   rank);
}

absl::StatusOr<std::vector<int>> LaunchOrderOf(const PlanOptions& options, int rank) {
  ASSIGN_OR_RETURN(const std::vector<RankPlan> roles, BuildRolePlans(options));
  ASSIGN_OR_RETURN(std::vector<std::vector<int>> orders, LaunchOrders(roles));
  RETURN_IF_ERROR(CheckLaunchOrders(roles, orders));
  return std::move(orders[RoleMap::ByStage(options.mesh).RoleOf(rank)]);
}

}  // namespace megascale::plan
