#include "runtime/simulate/links.h"

#include <algorithm>
#include <vector>

#include "runtime/base/check.h"

namespace megascale::simulate {
namespace {

using plan::GroupKind;
using plan::Instruction;
using plan::Mesh;
using plan::RankPlan;

// Returns the link on which `rank` exchanges with `peer`, or with all members of its group.
Link LinkOf(const Mesh& mesh, GroupKind group, int rank, int peer, int ranks_per_machine) {
  const auto machine = [&](int member) {
    return mesh.RankInGroup(group, rank, member) / ranks_per_machine;
  };
  // Ranks of a group ascend, so the first and the last are on one machine only if all are.
  const bool is_transfer = peer != plan::kNoPeer;
  const int first = is_transfer ? mesh.IndexInGroup(group, rank) : 0;
  const int last = is_transfer ? peer : mesh.GroupSize(group) - 1;
  return machine(first) == machine(last) ? Link::kInMachine : Link::kBetweenMachines;
}

}  // namespace

Links::Links(absl::Span<const RankPlan> plans, const plan::RoleMap& roles, int ranks_per_machine) {
  MEGASCALE_CHECK(roles.AreTemplates(plans) && ranks_per_machine >= 0);
  std::vector<std::vector<int>> ranks(static_cast<size_t>(roles.num_roles()));
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    ranks[static_cast<size_t>(roles.RoleOf(rank))].push_back(rank);
  }
  for (size_t role = 0; role < plans.size(); ++role) {
    const RankPlan& plan = plans[role];
    for (const Instruction& instruction : plan.instructions) {
      const GroupKind group = instruction.group;
      if (group == GroupKind::kNone) continue;
      const auto [link, is_new] =
          links_.try_emplace({plan.rank, group, instruction.peer}, Link::kInMachine);
      if (!is_new) continue;
      for (const int rank : ranks[role]) {
        if (ranks_per_machine == 0 || link->second == Link::kBetweenMachines) break;
        link->second = LinkOf(plan.mesh, group, rank, instruction.peer, ranks_per_machine);
      }
      Link& slowest = by_group_[group];
      slowest = std::max(slowest, link->second);
    }
  }
}

Link Links::Of(const RankPlan& plan, const Instruction& instruction) const {
  if (instruction.group == GroupKind::kNone) return Link::kInMachine;
  return links_.at({plan.rank, instruction.group, instruction.peer});
}

}  // namespace megascale::simulate
