// Reads the spans of a running job's newest steps, for `trace` and `diagnose`.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/diagnosis/evidence_source.h"
#include "controlplane/trace/job_spans.h"
#include "proto/control.pb.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::cli {

struct JobTrace {
  trace::JobSpans spans;
  std::vector<timeline::TimedStep> steps;  // not empty
};

// Errors: InvalidArgument - `num_steps`, the value of --steps, is not from 1 to 1000.
absl::Status CheckStepsTraced(int64_t num_steps);

// Returns the newest `num_steps` whole steps and the running steps. Errors: FailedPrecondition - no
// rank runs, no rank has begun a step, or the ranks' spans cannot be read; those of calls to the
// driver.
absl::StatusOr<JobTrace> TraceJob(EvidenceSource* source, const control::v1::Job& job,
                                  int64_t num_steps);

}  // namespace megascale::cli
