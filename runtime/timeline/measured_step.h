// Builds measured steps from the spans that ranks recorded. They have the form of planned steps, so
// the same code draws and summarises both. Pure functions.
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
  bool known = true;                   // false: no answer came for this rank; `spans` is empty
  std::vector<telemetry::Span> spans;  // in any order
  // when the spans were read: an instruction without an end was still running then
  int64_t seen_nanos = 0;
};

// Returns how long ago the newest span of a rank began or ended, when its spans were read; >= 0.
double QuietSeconds(const RankSpans& rank);

// Returns the newest `num_steps` steps that every known rank has ended, ascending, followed by the
// next two as far as they are known. A stalled job is in one of these two, since the exchange of
// norms keeps ranks within two steps of each other. If no rank has ended a step with all others,
// these two end with the newest step that at least half of the ranks have reached, so that a few
// ranks with made-up steps do not hide the others. Steps that no rank has begun are left out.
// Times count from the beginning of the first span.
//
// A span begins when its instruction may run; a transfer or collective then waits for its peers.
// The `begin` of its members is the time when the last of them was ready. Exceptions: a member that
// had already ended by then (a send into a buffer) begins when it was ready itself; a member that
// runs while its peers are not there begins when the spans were read.
//
// A pass reports itself how long it waited for exchanges with its tensor-parallel ranks. The wait
// for the last of these ranks to begin the pass is a part of that time, and is not returned as
// `exchange`. It is no longer than that time, so that a peer's spans do not change how long a rank
// computes. The exchanges themselves are returned for drawing only.
//
// Spans of instructions that no plan has are ignored, because spans come from other machines. A
// step is whole on every rank if none of its spans was lost. Requires: `plans` and `ranks` are by
// rank; each plan's ids are unique. Cost: O(spans log spans); memory for the steps that are
// returned.
std::vector<TimedStep> MeasureSteps(absl::Span<const plan::RankPlan> plans,
                                    absl::Span<const RankSpans> ranks, int num_steps);

}  // namespace megascale::timeline
