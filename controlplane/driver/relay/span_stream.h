// Reads the newest spans of a job's ranks from the agents that run them, one rank after another.
// Blocking: runs in the caller's thread until all spans are read or the reader is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/trace/evidence_file.h"
#include "proto/agent.pb.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// The sources of spans and their sink.
struct SpanStreamPorts {
  std::function<absl::StatusOr<megascale::control::v1::Job>()> job;
  std::function<absl::StatusOr<megascale::control::v1::GetClusterResponse>()> cluster;
  std::function<absl::StatusOr<megascale::agent::v1::SpanChunk>(
      const std::string& node_id, const megascale::agent::v1::FetchSpans& request)>
      fetch;
  // Returns what was kept of a job that has ended (last_evidence.h); may be empty.
  std::function<absl::StatusOr<trace::EvidenceFile>(const megascale::control::v1::Job&)> saved = {};
  // Asks the agents although the job has ended.
  bool asks_ended = false;
  // Sends a message to the reader; false: the reader is gone.
  std::function<bool(const megascale::control::v1::StreamSpansResponse&)> emit;
  std::function<absl::Duration()> now;  // this process's monotonic clock
};

// How many times a machine is asked for its clock. The fastest answer counts, because slower ones
// waited in a queue.
inline constexpr int kClockQuestions = 5;

// Reads spans of one job, in one or more readings. What a reading learns about machines is kept for
// later readings: the machines' clocks, and which nodes do not answer, because each question to
// such a node costs a timeout.
// Clocks: an agent's answer carries its monotonic clock, which is assumed to be read halfway
// between question and answer; the error is at most half of the time between them. All ranks of a
// machine get the same correction, so their times can be compared without this error.
class SpanStream {
 public:
  using Emit = std::function<bool(const megascale::control::v1::StreamSpansResponse&)>;

  // `ports.emit` is not used.
  explicit SpanStream(SpanStreamPorts ports) : ports_(std::move(ports)) {}

  // Emits one message for each rank that is asked for, in rank order; for a rank whose spans cannot
  // be read, the message says why. Errors: NotFound - no such job; FailedPrecondition - the job has
  // ended, or none of its ranks has begun; Cancelled - the reader is gone.
  absl::Status Read(const megascale::control::v1::StreamSpansRequest& request, const Emit& emit);

 private:
  // A machine's clock, in nanoseconds.
  struct ClockReading {
    int64_t ahead = 0;  // of this process's
    int64_t error = 0;  // at most
  };

  megascale::control::v1::StreamSpansResponse ReadRank(const megascale::control::v1::RankView& view,
                                                       int64_t first_step);
  absl::StatusOr<megascale::agent::v1::SpanChunk> Fetch(
      const std::string& node, const megascale::agent::v1::FetchSpans& fetch);
  absl::StatusOr<ClockReading> ClockOf(const std::string& node);

  SpanStreamPorts ports_;
  std::optional<megascale::control::v1::Job> job_;  // at the first reading
  std::map<std::string, std::string> machines_;     // by node
  std::map<std::string, ClockReading> clocks_;      // by machine
  std::map<std::string, absl::Status> away_;        // by node
};

// Makes one reading, into `ports.emit`. Errors: those of SpanStream::Read.
absl::Status StreamSpans(const megascale::control::v1::StreamSpansRequest& request,
                         const SpanStreamPorts& ports);

}  // namespace megascale::driver
