// Builds measured steps from the spans that ranks recorded. Measured steps have the same form as
// planned steps, so the same code draws and summarises both. Pure functions.
//
//   const std::vector<TimedStep> steps = MeasureSteps(plans, spans, 5);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/telemetry/span_ring.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::timeline {

// The spans of one rank. Times of all ranks are on one clock.
struct RankSpans {
  bool known = true;                   // false: no spans came for this rank; `spans` is empty
  std::vector<telemetry::Span> spans;  // in any order
  // when the spans were read; an instruction without an end was still running at this time
  int64_t seen_nanos = 0;
};

// Returns the time from the begin or end of a rank's newest span to the reading of its spans; >= 0.
double QuietSeconds(const RankSpans& rank);

// Returns the newest `num_steps` steps that every known rank has ended, ascending, followed by the
// next two steps if ranks have begun them. A stalled job is in one of these two, because the
// exchange of norms keeps ranks within two steps of each other. If there is no step that every
// known rank has ended, the second of these two is the newest step that at least half of the ranks
// have reached, so that a few ranks that report wrong steps do not hide the others. Times count
// from the beginning of the first span.
//
// A span begins when its instruction may run; a transfer or collective then waits for its peers.
// The `begin` of its members is the time at which the last member was ready. Exceptions: a member
// that had already ended before this time (a send into a buffer) begins when it was ready itself; a
// member that still runs while some peers have not come begins when the spans were read.
//
// A pass itself reports how long it waited for exchanges with its tensor-parallel ranks. A part of
// the reported time is the wait for the last of these ranks to begin the pass, which is not
// returned as `exchange`. This part is limited to the reported time, so that a peer's spans do not
// change how long a rank computes. The exchanges themselves are returned for drawing only.
//
// Spans of instructions that the rank's plan does not have are ignored, because spans come from
// other machines and may be wrong. A step that every rank has ended is whole if none of its spans
// was lost. Requires: `plans` and `ranks` are by rank; each plan's ids are unique. Cost: O(spans
// log spans); memory for the steps that are returned.
std::vector<TimedStep> MeasureSteps(absl::Span<const plan::RankPlan> plans,
                                    absl::Span<const RankSpans> ranks, int num_steps);

}  // namespace megascale::timeline
