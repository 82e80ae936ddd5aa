// One order for all communication of a rank, across its streams. A collective of NCCL occupies its
// part of the GPU until all members have launched the collective. So two ranks that launch two
// collectives in different orders, from independent threads, can wait for each other forever. To
// prevent this, each rank launches in this order, and the orders of all ranks agree.
//
//   ASSIGN_OR_RETURN(const auto roles, BuildRolePlans(options));
//   ASSIGN_OR_RETURN(const auto orders, LaunchOrders(roles));
//   RETURN_IF_ERROR(CheckLaunchOrders(roles, orders));
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Returns for each plan the indices of its instructions that meet others, in the order in which the
// rank must launch them. Meetings are ordered by the time at which all of their members could begin
// if every instruction took one unit of time. All ranks use the same order for meetings with equal
// times. The order never contradicts a dependency.
//
// Requires: as CheckRendezvous, and CheckRendezvous accepts the plans. If `plans` are the plans of
// roles, each order holds for all ranks of its role, because the image of a meeting
// (validate_roles.h) has the same place in every order. Cost: O(instructions + meetings x
// log(meetings)). Errors: those of CheckRendezvous.
absl::StatusOr<std::vector<std::vector<int>>> LaunchOrders(absl::Span<const RankPlan> plans);

// Proves that no deadlock is possible if every rank launches in its order. It makes the strictest
// assumption, that each exchange occupies a whole device until its end. Errors: InvalidArgument -
// an order lacks an instruction that meets others, or has one twice; a deadlock.
absl::Status CheckLaunchOrders(absl::Span<const RankPlan> plans,
                               absl::Span<const std::vector<int>> orders);

}  // namespace megascale::plan
