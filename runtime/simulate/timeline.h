// A planned step as people see it: a drawing (SVG). A pure function: the same plans and times give
// the same bytes. What can be looked into is perfetto_trace.h.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"
#include "runtime/simulate/step_time.h"

namespace megascale::simulate {

// A band for each rank: computing, with the number of the micro-batch where there is room, and
// below it a thin line for each stream that communicates. Chunks of one rank differ in shade; what
// waits for peers is pale; what has not begun is not there. `title` is written above; `names` are
// by rank, empty: NameOf. Requires: `time` is of `plans`. Cost: some 300 bytes for an instruction.
std::string TimelineSvg(absl::Span<const plan::RankPlan> plans, const StepTime& time,
                        const std::string& title, absl::Span<const std::string> names = {});

}  // namespace megascale::simulate
