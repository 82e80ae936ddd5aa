// A planned step by the wall clock. Each rank is a process, with the executor, the streams and the
// communicators that train; only its device does not compute: it sleeps for the stated time of an
// operation, so that a few cores pace many ranks. What a schedule takes here beyond
// simulate::TimeStep is what the machinery around it costs.
//
// What communicates meets its peers over their communicator, under the instruction's id: they tell
// each other when each was ready (the monotonic clock of the machine) and what was stated to it;
// the longest of these counts from when the last was ready, as it does in TimeStep.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/plan/step_plan.h"
#include "runtime/simulate/step_time.h"

namespace megascale::bench {

struct PacedOptions {
  plan::PlanOptions plan = {};
  simulate::DurationOf duration = nullptr;  // stated nanoseconds of each instruction
  int num_steps = 10;                       // that count; one before them does not
};

// How long each step took, from its launch on the first rank to its end on the last one; so never
// less than TimeStep says. Requires: this process has no other thread. Blocking: until all ranks
// have ended, at most half a minute. Errors: those of BuildTrainPlan; the first of a rank.
absl::StatusOr<std::vector<absl::Duration>> RunPaced(const PacedOptions& options);

}  // namespace megascale::bench
