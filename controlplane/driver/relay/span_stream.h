// Reads what a job's ranks did last from the agents that run them, one rank after another.
// Blocking: runs in the caller's thread until all is read or it is stopped.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Where spans come from and go to.
struct SpanStreamPorts {
  std::function<absl::StatusOr<megascale::control::v1::Job>()> job;
  std::function<absl::StatusOr<megascale::control::v1::GetClusterResponse>()> cluster;
  std::function<absl::StatusOr<megascale::agent::v1::SpanChunk>(
      const std::string& node_id, const megascale::agent::v1::FetchSpans& request)>
      fetch;
  // False: the reader is gone.
  std::function<bool(const megascale::control::v1::StreamSpansResponse&)> emit;
  std::function<absl::Duration()> now;  // this process's monotonic clock
};

// How often a machine is asked for its clock. The answer that came fastest counts: the others had
// to queue somewhere.
inline constexpr int kClockQuestions = 5;

// Emits a message for each rank, in order; of a rank that cannot be read, one that says why.
//
// Clocks: an agent's answer carries its monotonic clock, and is taken to have been read halfway
// between question and answer; so it is off by half of that time at most. All ranks of a machine
// get the same correction: between them nothing is off. Errors: NotFound - no such job;
// FailedPrecondition - the job has ended, or no rank of it has begun.
absl::Status StreamSpans(const megascale::control::v1::StreamSpansRequest& request,
                         const SpanStreamPorts& ports);

}  // namespace megascale::driver
