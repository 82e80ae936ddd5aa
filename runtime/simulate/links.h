// Says on which link the exchanges of a step run: inside a machine or between machines.
//
// Consecutive ranks fill the machines, because the driver places them in this way. A collective
// runs on a ring, which is as slow as its slowest link. So it counts as running between machines if
// any two members of its group are on different machines. A transfer runs on the link between its
// two ranks.
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
  // `plans`: the plans of the first rank of each role, in order. With `ranks_per_machine` = 0 one
  // machine runs all ranks. Requires: roles.AreTemplates(plans); ranks_per_machine >= 0. Cost:
  // O(ranks) for each group and peer that a role's instructions name.
  Links(absl::Span<const plan::RankPlan> plans, const plan::RoleMap& roles, int ranks_per_machine);

  // Returns the link of an exchange; kInMachine for an instruction without one. A role's ranks may
  // be placed differently on the machines. The slowest link among them counts, so a step may seem
  // slower than with a separate plan for every rank. Requires: `plan` is one of the plans that the
  // constructor got, and `instruction` belongs to it.
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
