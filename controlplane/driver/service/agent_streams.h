// The driver's side of the agents' streams: carries reports to the event loop and desired states
// back, serves the embedded store, and fetches pieces of log files and spans.
// Threads: public functions from any thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

  // To be registered with a gRPC server, which must end before this and before `loop`.
  grpc::Service* Serve(DriverLoop* loop);

  // For DriverLoop::Options::on_attempts: requests to the store are answered for these only, and
  // the keys of others are forgotten.
  void SetAttempts(const std::map<std::string, int64_t>& attempts);

  // A piece of a log file on a node. Blocking: at most `timeout`.
  // Errors: Unavailable - the node is not connected; NotFound - it has no such log;
  // DeadlineExceeded.
  absl::StatusOr<megascale::agent::v1::LogChunk> Fetch(const std::string& node_id,
                                                       megascale::agent::v1::FetchLog request,
                                                       absl::Duration timeout);

  // Spans of a rank, or the agent's clock. Blocking: at most `timeout`.
  // Errors: Unavailable - the node is not connected; NotFound - the rank does not run that attempt
  // there; DeadlineExceeded.
  absl::StatusOr<megascale::agent::v1::SpanChunk> Fetch(const std::string& node_id,
                                                        megascale::agent::v1::FetchSpans request,
                                                        absl::Duration timeout);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace megascale::driver
