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

// The sources of logs and their sink.
struct LogStreamPorts {
  std::function<absl::StatusOr<megascale::control::v1::Job>()> job;
  std::function<absl::StatusOr<megascale::control::v1::GetClusterResponse>()> cluster;
  // Called by several threads at a time.
  std::function<absl::StatusOr<megascale::agent::v1::LogChunk>(
      const std::string& node_id, const megascale::agent::v1::FetchLog& request)>
      fetch;
  // Sends a piece to the reader; false: the reader is gone.
  std::function<bool(const megascale::control::v1::StreamLogsResponse&)> emit;
  // Waits; false: stop.
  std::function<bool(absl::Duration)> wait;
};

inline constexpr absl::Duration kFollowInterval = absl::Milliseconds(250);

// A stream that was resumed waits at its end for at most this long for agents that are away and
// whose logs were being read.
inline constexpr absl::Duration kNodeAbsenceMax = absl::Seconds(10);

// Emits whole lines, from the beginning of the requested attempt or from `resume_at`. Without
// `follow` it stops at the present end of the logs; with `follow`, when the job has ended and its
// logs are read. If attempt 0 is requested, begins with the newest attempt and continues with each
// later attempt, after the last line of the attempt before. It looks for a rank's log on the rank's
// node first, then on the others, because an older attempt may have run elsewhere. Errors: NotFound
// - no such rank, or no node has its log; Unavailable - `wait` returned false.
absl::Status StreamLogs(const megascale::control::v1::StreamLogsRequest& request,
                        const LogStreamPorts& ports);

}  // namespace megascale::driver
