// What a job that begins from a checkpoint of another job carries on, and what it may not change in
// silence: its numerics, its data, its samples' order and its learning rates. The place in the data
// is the checkpoint's, whatever the batches of its steps were. Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace megascale::engine {

// A job as it would begin now. Borrows its parts.
struct ResumingJob {
  const megascale::job::v1::JobSpec* spec;  // resolved
  const megascale::checkpoint::v1::DataFingerprint* data;
  const megascale::checkpoint::v1::NumericsFingerprint* numerics;
  std::vector<std::string> allow_changed;  // areas, or "all"
};

struct ResumePlace {
  int64_t step = 0;           // completed steps
  int64_t sample_offset = 0;  // RestorePoint.sample_offset
  // For people, one line each: changes that move learning rates or the place in the data.
  std::vector<std::string> warnings;
};

// Returns where the job goes on from the checkpoint. Errors: FailedPrecondition - one line: the
// checkpoint has weights alone or too many steps; or the job has other numerics, other data or
// another learning rate at its next step: the message names it with both values and the flag that
// allows it.
absl::StatusOr<ResumePlace> PlaceToResume(const megascale::checkpoint::v1::Manifest& manifest,
                                          const ResumingJob& job);

}  // namespace megascale::engine
