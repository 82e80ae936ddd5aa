// Runs a planned step in real time. Each rank is a process with the executor, streams and
// communicators of real training; only its device does not compute but sleeps for the stated time
// of an operation, so that a few cores can pace many ranks. The time beyond simulate::TimeStep is
// the overhead of the machinery.
//
// Instructions that communicate meet their peers over the communicator, under the instruction's id.
// The peers tell each other when each was ready (on the machine's monotonic clock) and the time
// stated to it. The longest stated time counts from when the last peer was ready, as in TimeStep.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/simulate/step_time.h"

namespace megascale::bench {

struct PacedOptions {
  plan::PlanOptions plan = {};
  simulate::DurationOf duration = nullptr;  // stated nanoseconds of each instruction
  int num_steps = 10;                       // measured steps; one more before them is not measured
};

// Returns how long each step took, from its launch on the first rank to its end on the last rank;
// never less than TimeStep. Requires: this process has no other thread. Blocking: until all ranks
// have ended, at most half a minute. Errors: those of BuildTrainPlan; the first error of a rank.
absl::StatusOr<std::vector<absl::Duration>> RunPaced(const PacedOptions& options);

}  // namespace megascale::bench
