// Reads evidence about a job's ranks from the agents that run them: several nodes at once, the
// ranks of a node one after another. Blocking: until all is read or the reader is gone.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controlplane/trace/evidence_file.h"
#include "proto/agent.pb.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Nodes that one stream asks at once, so that a node that does not answer within the fetch's
// timeout does not hold up all the others.
inline constexpr int kNodesAskedAtOnce = 24;

// The sources of evidence and its sink. `fetch` is called from several threads at once, `emit` from
// one at a time.
struct EvidenceStreamPorts {
  std::function<absl::StatusOr<megascale::control::v1::Job>()> job;
  std::function<absl::StatusOr<megascale::control::v1::GetClusterResponse>()> cluster;
  std::function<absl::StatusOr<megascale::agent::v1::EvidenceChunk>(
      const std::string& node_id, const megascale::agent::v1::FetchEvidence& request)>
      fetch;
  // Returns what was kept of a job that has ended (last_evidence.h); may be empty.
  std::function<absl::StatusOr<trace::EvidenceFile>(const megascale::control::v1::Job&)> saved = {};
  // Asks the agents although the job has ended.
  bool asks_ended = false;
  // Sends a message to the reader; false: the reader is gone.
  std::function<bool(const megascale::control::v1::StreamEvidenceResponse&)> emit;
};

// Emits one message for each rank that is asked for; for metrics, one for each node. They come in
// the order of the answers. If something cannot be read, the message says why. Rank and node in a
// message come from the driver, whatever the agent answers. Errors: InvalidArgument - unknown kind;
// NotFound - no such job; FailedPrecondition - the job has ended, or none of its ranks has begun;
// Cancelled - the reader is gone. Cost: for each node that is asked at the same time, a thread and
// memory for one answer.
absl::Status StreamEvidence(const megascale::control::v1::StreamEvidenceRequest& request,
                            const EvidenceStreamPorts& ports);

}  // namespace megascale::driver
