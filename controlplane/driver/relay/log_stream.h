// Reads the logs of a job's processes from the agents that hold them, a piece at a time.
// Blocking: runs in the caller's thread until all is read or it is stopped.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Where logs come from and go to.
struct LogStreamPorts {
  std::function<absl::StatusOr<megascale::control::v1::Job>()> job;
  std::function<absl::StatusOr<megascale::control::v1::GetClusterResponse>()> cluster;
  std::function<absl::StatusOr<megascale::agent::v1::LogChunk>(
      const std::string& node_id, const megascale::agent::v1::FetchLog& request)>
      fetch;
  // False: the reader is gone.
  std::function<bool(const megascale::control::v1::StreamLogsResponse&)> emit;
  // Waits; false: stop.
  std::function<bool(absl::Duration)> wait;
};

inline constexpr absl::Duration kFollowInterval = absl::Milliseconds(250);

// Emits whole lines. Without `follow` until the end of what there is, with it until the job has
// ended and all is read; attempt 0 goes on with each new attempt. A rank's log is looked for on the
// node it is placed on, then on the others, because an older attempt may have run elsewhere.
// Errors: NotFound - no such rank, or no node has any of it.
absl::Status StreamLogs(const megascale::control::v1::StreamLogsRequest& request,
                        const LogStreamPorts& ports);

}  // namespace megascale::driver
