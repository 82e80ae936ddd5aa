// Says on which link the exchanges of a step run: inside a machine or between machines.
//
// Consecutive ranks fill the machines, as the driver places them. A collective runs on a ring,
// which is as slow as its slowest link: it runs between machines as soon as two members of its
// group are on different ones. A transfer runs on the link between its two ranks.
//
//   const Links links(stages, plan::RoleMap::ByStage(mesh), /*ranks_per_machine=*/8);
//   const int64_t nanos = costs.NanosOf(instruction, links.Of(plan, instruction));
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/role_map.h"

namespace megascale::simulate {

// From fast to slow.
enum class Link : uint8_t { kInMachine, kBetweenMachines };

// Immutable. Threads: any.
class Links {
 public:
  // `plans`: those of the first ranks of all roles, in order. With `ranks_per_machine` = 0 one
  // machine runs all ranks. Requires: roles.AreTemplates(plans); ranks_per_machine >= 0. Cost:
  // O(ranks) for each group and peer that a role's instructions name.
  Links(absl::Span<const plan::RankPlan> plans, const plan::RoleMap& roles, int ranks_per_machine);

  // Returns the link of an exchange; kInMachine for an instruction without one. Replicas of a role
  // may lie differently on the machines: the slowest link among the role's ranks counts, so that a
  // step takes at most what a plan of every rank would say. Requires: `plan` is one of the plans
  // that the constructor got, and `instruction` belongs to it.
  Link Of(const plan::RankPlan& plan, const plan::Instruction& instruction) const;

  // Returns the slowest link of each kind of group in which the plans exchange.
  const std::map<plan::GroupKind, Link>& by_group() const { return by_group_; }

 private:
  // First rank of a role, group and peer (kNoPeer: a collective).
  using Exchange = std::tuple<int, plan::GroupKind, int>;

  std::map<Exchange, Link> links_;
  std::map<plan::GroupKind, Link> by_group_;
};

}  // namespace megascale::simulate
