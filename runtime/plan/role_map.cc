#include "runtime/plan/role_map.h"

#include "absl/container/flat_hash_map.h"

namespace megascale::plan {

RoleMap RoleMap::ByStage(const Mesh& mesh) { return ByAxes(mesh, {Axis::kPipeline}); }

RoleMap RoleMap::ByAxes(const Mesh& mesh, AxisSet axes) {
  std::vector<int> first_rank(static_cast<size_t>(mesh.world_size()));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    Coordinate at = mesh.CoordinateOf(rank);
    for (const AxisRow& row : mesh.axes()) {
      if (!axes.Has(row.axis)) At(at, row.axis) = 0;
    }
    first_rank[static_cast<size_t>(rank)] = mesh.RankOf(at);
  }
  return Of(first_rank);
}

RoleMap RoleMap::Of(absl::Span<const int> role_of_rank) {
  RoleMap map;
  absl::flat_hash_map<int, int> known;
  for (const int number : role_of_rank) {
    const auto [role, is_new] = known.try_emplace(number, map.num_roles());
    if (is_new) map.first_ranks_.push_back(map.num_ranks());
    map.roles_.push_back(role->second);
  }
  return map;
}

bool RoleMap::AreTemplates(absl::Span<const RankPlan> plans) const {
  if (static_cast<int>(plans.size()) != num_roles()) return false;
  for (int role = 0; role < num_roles(); ++role) {
    const RankPlan& plan = plans[static_cast<size_t>(role)];
    if (plan.rank != FirstRankOf(role) || plan.mesh.world_size() != num_ranks()) return false;
  }
  return true;
}

}  // namespace megascale::plan
