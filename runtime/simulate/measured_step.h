// Steps that ran, from what ranks told of them: the form of a planned step, so that one reader
// draws and sums up both. Pure functions.
//
//   const std::vector<TimedStep> steps = MeasureSteps(plans, spans, 5);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"
#include "runtime/simulate/step_time.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::simulate {

// What is known of one rank. All times are of one clock, the same for all ranks.
struct RankSpans {
  bool known = true;                   // false: nobody answered for it; `spans` is empty
  std::vector<telemetry::Span> spans;  // in any order
  int64_t seen_nanos = 0;              // when they were read: what had not ended ran still
};

// The newest `num_steps` steps that every known rank has ended, ascending, and after them the two
// that come next, as far as they are known. There a job is that stands still: the exchange of norms
// keeps ranks within two steps. None where no rank has begun one. Times count from the first span's
// beginning.
//
// A span begins when its instruction may run: what communicates then waits until its peers do their
// part. `begin` of a member of a transfer or collective is when the last of them was ready; of one
// that had ended by then (a send into a buffer), when it was ready itself; of one that runs without
// its peers, when it was seen.
//
// A pass says itself how long it waited for exchanges of its tensor-parallel ranks; what it waited
// for the last of them to begin it is no part of that. The exchanges themselves are for drawing.
//
// What no plan has is ignored: spans come from other machines. A step that is whole on every rank
// is one of which no span was lost. Requires: `plans` and `ranks` are by rank, each plan's ids
// differ. Cost: O(spans log spans); memory for the steps that are returned.
std::vector<TimedStep> MeasureSteps(absl::Span<const plan::RankPlan> plans,
                                    absl::Span<const RankSpans> ranks, int num_steps);

}  // namespace megascale::simulate
