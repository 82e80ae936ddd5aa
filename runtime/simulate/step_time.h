// Computes when each instruction of a step begins and ends, given the duration of each instruction.
// The result is the longest path over dependencies, the order of streams and the meetings of ranks.
// Nothing runs. measured_step.h has measured steps in the same form.
//
// An instruction is ready when its dependencies and the previous instruction on its stream have
// ended. If it computes, it begins then. A send and its receive, or the members of a collective,
// move their data once all of them are ready; a member that is ready early waits. ValidatePlans
// reads a plan in the same way.
//
//   ASSIGN_OR_RETURN(StepTime time, TimeStep(plans, durations));
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/role_map.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::simulate {

// Returns the nanoseconds of an instruction from begin to end. For a transfer or collective, the
// longest value among its members counts.
using DurationOf = std::function<int64_t(const plan::RankPlan&, const plan::Instruction&)>;

// Computes the times of a step. `plans`: either the plans of all ranks, in order, or one plan for
// each stage of a mesh (plan::BuildRolePlans). The times of a stage hold for every replica, because
// replicas have the same durations and so are ready at the same time. Requires: each plan passes
// ValidateRankPlan; durations are not negative. Cost: O(instructions). Errors: InvalidArgument -
// other plans; ranks that wait for each other, or for communication that no rank does. The message
// names an instruction.
absl::StatusOr<timeline::StepTime> TimeStep(absl::Span<const plan::RankPlan> plans,
                                            const DurationOf& duration);
// The same for the plans of other roles than stages, in their order.
absl::StatusOr<timeline::StepTime> TimeStep(absl::Span<const plan::RankPlan> templates,
                                            const plan::RoleMap& roles, const DurationOf& duration);

}  // namespace megascale::simulate
