// What the page reads of a driver. The driver implements it with the calls behind its gRPC API;
// tests implement it with jobs of their own. Threads: any. Blocking: as the calls of JobService.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"

namespace megascale::page {

class PageSource {
 public:
  virtual ~PageSource() = default;

  virtual absl::StatusOr<std::vector<control::v1::Job>> Jobs() = 0;
  virtual absl::StatusOr<control::v1::GetClusterResponse> Cluster() = 0;
  // Errors of the following: NotFound - no such job.
  virtual absl::StatusOr<control::v1::Job> GetJob(const std::string& job_id) = 0;
  // Calls `emit` for each rank that is asked for, until `emit` returns false.
  virtual absl::Status Spans(
      const control::v1::StreamSpansRequest& request,
      const std::function<bool(const control::v1::StreamSpansResponse&)>& emit) = 0;
  // Returns what the rank's agent keeps about the rank or, for metrics, about its machine. Errors:
  // FailedPrecondition - the job does not run; and those of the agent.
  virtual absl::StatusOr<telemetry::v1::Evidence> Evidence(const std::string& job_id, int rank,
                                                           telemetry::v1::EvidenceKind kind) = 0;
  // Calls `emit` for the lines that a rank wrote in the newest attempt, until `emit` returns false.
  virtual absl::Status Logs(
      const std::string& job_id, int rank,
      const std::function<bool(const control::v1::StreamLogsResponse&)>& emit) = 0;
  // Returns at most `steps_max` completed steps from `first_step` on, as ListSteps does.
  virtual absl::StatusOr<std::vector<telemetry::v1::StepRecord>> Steps(const control::v1::Job& job,
                                                                       int64_t first_step,
                                                                       int64_t steps_max) = 0;
  // Returns about `points` steps, evenly spaced over the whole loss log; the first and the last are
  // among them.
  virtual absl::StatusOr<std::vector<telemetry::v1::StepRecord>> SampleSteps(
      const control::v1::Job& job, int64_t points) = 0;
};

}  // namespace megascale::page
