// How the ranks of a step meet: which sends, receives and collectives belong together, and whether
// all of them get to meet. Used by ValidatePlans.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"

namespace megascale::plan {

// Pairs the communication of all ranks in the order of each channel and runs the step with strict
// rendezvous.
// Requires: the plans of all ranks of one mesh, in rank order, or of the first rank of each stage,
// each as ValidatePlans wants it alone. Of a group only the members whose plans are given meet.
// Errors: InvalidArgument - communication without its counterpart, in another order or with
// other bytes; a deadlock.
absl::Status CheckRendezvous(absl::Span<const RankPlan> plans);

}  // namespace megascale::plan
