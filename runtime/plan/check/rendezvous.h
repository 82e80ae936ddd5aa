// How the ranks of a step meet: pairs sends with receives, matches collectives, and checks that
// every meeting takes place. Used by ValidatePlans.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Pairs the communication of all ranks in the order of each channel and runs the step with strict
// rendezvous.
// Requires: the plans of all ranks of one mesh, in rank order, or of the first rank of each role;
// each plan passes the checks that ValidatePlans makes on a plan alone. In a group, only members
// whose plans are given meet. Errors: InvalidArgument - communication without its counterpart, in
// another order or with other bytes; a deadlock.
absl::Status CheckRendezvous(absl::Span<const RankPlan> plans);

}  // namespace megascale::plan
