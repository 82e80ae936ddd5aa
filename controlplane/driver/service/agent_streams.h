// The driver's side of the agents' streams: carries reports to the event loop and desired states
// back, serves the embedded store, and fetches pieces of log files and spans.
// Threads: public functions from any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "proto/agent.pb.h"

namespace grpc {
class Service;
}

namespace megascale::driver {

class DriverLoop;

class AgentStreams {
 public:
  AgentStreams();
  ~AgentStreams();

  // Returns the service to register with a gRPC server. The server must end before this object and
  // before `loop`.
  grpc::Service* Serve(DriverLoop* loop);

  // Calls this for every stream that an agent opens, with gRPC's name of its connection. Call it
  // before Serve.
  void OnCall(std::function<void(const std::string&)> on_call);

  // Sets the current attempts by job id: the embedded store answers requests of these attempts
  // only, from agents that hold ranks of them, and forgets the keys of all others. Meant for
  // DriverShell::Options::on_attempts.
  void SetAttempts(const std::map<std::string, RunningAttempt>& attempts);

  // Fetches a piece of a log file from a node. Blocking: at most `timeout`.
  // Errors: Unavailable - the node is not connected; NotFound - it has no such log;
  // DeadlineExceeded.
  absl::StatusOr<megascale::agent::v1::LogChunk> Fetch(const std::string& node_id,
                                                       megascale::agent::v1::FetchLog request,
                                                       absl::Duration timeout);

  // Fetches the spans of a rank, or the agent's clock. Blocking: at most `timeout`.
  // Errors: Unavailable - the node is not connected; NotFound - the rank does not run that attempt
  // there; DeadlineExceeded.
  absl::StatusOr<megascale::agent::v1::SpanChunk> Fetch(const std::string& node_id,
                                                        megascale::agent::v1::FetchSpans request,
                                                        absl::Duration timeout);

  // Fetches evidence about a rank. Blocking and errors: as for spans.
  absl::StatusOr<megascale::agent::v1::EvidenceChunk> Fetch(
      const std::string& node_id, megascale::agent::v1::FetchEvidence request,
      absl::Duration timeout);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace megascale::driver
