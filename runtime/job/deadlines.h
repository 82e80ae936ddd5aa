// The deadlines of an attempt, in their order. What lasts longer waits for what lasts shorter, so
// each is at most kNextDeadline of the next: a cause is reported before anybody gives up who waits
// for its consequences. All waits of ranks and of the driver's failure detector for each other come
// from here.
#pragma once

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace megascale::job {

// With this factor two deadlines that begin within a fifth of the longer one keep their order.
inline constexpr double kNextDeadline = 0.8;

struct Deadlines {
  // A machine must answer a rank that connects to a rank there which has published its address.
  absl::Duration connect;
  // Ranks that have found each other must have joined their groups: each has proved itself to the
  // others.
  absl::Duration join;
  // A training rank must make progress. The failure detector's.
  absl::Duration progress;
  // A rank must begin its first step, or make progress on the way there. The failure detector's.
  absl::Duration start;
  // For a rank that waits for others to come, or in a call: whoever keeps it waiting exceeds a
  // deadline above first, and is the cause.
  absl::Duration wait;
};

// Fills in progress_timeout and start_timeout where they are missing, each so that it fits to the
// other one.
void FillDeadlines(v1::FaultSpec* fault);

// Returns whether progress_timeout and start_timeout leave start_timeout long enough.
bool AreInOrder(const v1::FaultSpec& fault);

// Requires: the durations of `fault` are filled in. Where they contradict, which no driver of this
// version accepts (job_spec.h), `start` is longer than `fault` says.
Deadlines DeadlinesOf(const v1::FaultSpec& fault);

}  // namespace megascale::job
