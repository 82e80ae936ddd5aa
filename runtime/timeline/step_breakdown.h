// Breaks down the time of one rank's step, measured or planned. A pure function.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::timeline {

// Nanoseconds. Every instant of the step counts for the first field below that applies. So the
// fields add up to the step's time exactly, and communication counts only while the rank does not
// compute.
struct StepBreakdown {
  int64_t compute = 0;          // a forward, a backward or weight gradients
  int64_t tensor_parallel = 0;  // a pass waits for an exchange of its tensor-parallel ranks
  int64_t optimizer = 0;        // the shard computes
  int64_t pipeline = 0;         // a transfer between stages moves its data
  int64_t data_parallel = 0;    // a collective moves its data: gradients, norm, parameters
  int64_t data_wait = 0;        // the batch is being loaded
  int64_t bubble = 0;           // otherwise: the rank waits for peers, or runs nothing

  // Time from when the rank's first instruction was ready to the end of its last one.
  int64_t total() const {
    return compute + tensor_parallel + optimizer + pipeline + data_parallel + data_wait + bubble;
  }
  bool operator==(const StepBreakdown&) const = default;
  StepBreakdown& operator+=(const StepBreakdown& other);
};

// Computes the breakdown of one rank. A pass counts first, whether it computes or waits for its own
// exchanges. A receive that moves data counts before a collective, and a collective before a send,
// because the next pass waits for the receive. Waiting (from `ready` to `begin`) does not count as
// communication, because in this time the peer computes or is stuck. An instruction that still runs
// counts up to its `end`. An instruction that has not begun does not count. Requires: `spans`
// belong to `plan`. Cost: O(n log n) for n instructions.
StepBreakdown BreakDown(const plan::RankPlan& plan, absl::Span<const SpanTime> spans);

}  // namespace megascale::timeline
