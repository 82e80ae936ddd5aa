// Where the time of a rank's step went, of a measured or a planned one. A pure function.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"
#include "runtime/simulate/step_time.h"

namespace megascale::simulate {

// Nanoseconds. Every instant of the step counts once, for the first of these that holds; so the
// parts add up to the step's time exactly, and communication counts only where nothing hid it.
struct StepBreakdown {
  int64_t compute = 0;          // forward, backward and gradients of weights
  int64_t tensor_parallel = 0;  // one of them waits for what its tensor-parallel ranks exchange
  int64_t optimizer = 0;        // the shard computes
  int64_t pipeline = 0;         // a transfer between stages moves its data
  int64_t data_parallel = 0;    // a collective does: gradients, norm, parameters
  int64_t data_wait = 0;        // the batch is being loaded
  int64_t bubble = 0;           // what is left: peers are waited for, or nothing runs

  // From when the rank's first instruction was ready to the end of its last one.
  int64_t total() const {
    return compute + tensor_parallel + optimizer + pipeline + data_parallel + data_wait + bubble;
  }
  bool operator==(const StepBreakdown&) const = default;
  StepBreakdown& operator+=(const StepBreakdown& other);
};

// Of the rank's instructions: a pass comes first, whether it computes or waits for an exchange of
// its own. A receive that moves data comes before a collective, that before a send, because the
// next pass waits for the receive. Waiting (from `ready` to `begin`) is no communication: a peer
// computes, or stands still. What runs still counts up to its `end`, what has not begun not at all.
// Requires: `spans` are of `plan`. Cost: O(n log n) of n instructions.
StepBreakdown BreakDown(const plan::RankPlan& plan, absl::Span<const SpanTime> spans);

}  // namespace megascale::simulate
