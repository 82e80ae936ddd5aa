// Draws a step as SVG. A pure function: the same plans and times give the same bytes.
// perfetto_trace.h writes a trace that can be zoomed.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::timeline {

// Returns a drawing with a band for each rank: at the top its computing, with the numbers of
// micro-batches where they fit, and below a thin line for each stream that communicates. Chunks of
// one rank differ in shade; waiting for peers is pale; instructions that have not begun are not
// drawn. `title` is written above; `names` are by rank, empty: NameOf. Requires: `time` belongs to
// `plans`. Cost: about 300 bytes for an instruction.
std::string TimelineSvg(absl::Span<const plan::RankPlan> plans, const StepTime& time,
                        const std::string& title, absl::Span<const std::string> names = {});

}  // namespace megascale::timeline
