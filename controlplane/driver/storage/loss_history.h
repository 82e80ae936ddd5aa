// Reads parts of a job's loss log, for people: while the driver writes it, from any thread, and
// without reading the whole file. Lines that are no records are skipped.
// Threads: any. Blocking: the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controlplane/driver/storage/job_files.h"
#include "proto/telemetry.pb.h"

namespace megascale::driver {

using StepRecords = std::vector<megascale::telemetry::v1::StepRecord>;

// Returns at most `steps_max` records of the log in `directory` from `first_step` on, ascending. A
// log that does not exist has no steps. Cost: a binary search, then the part that is returned.
absl::StatusOr<StepRecords> ReadSteps(const std::string& directory, JobFiles* files,
                                      int64_t first_step, int64_t steps_max);

// Returns the last records of the log, at most `steps_max`, ascending. Cost: at most 512 bytes for
// each are read.
absl::StatusOr<StepRecords> ReadLastSteps(const std::string& directory, JobFiles* files,
                                          int64_t steps_max);

// Returns about `points` records, evenly spaced by their place in the file, with the first and the
// last one. Cost: at most one block of 512 bytes for each, or the file if that is less.
absl::StatusOr<StepRecords> SampleSteps(const std::string& directory, JobFiles* files,
                                        int64_t points);

}  // namespace megascale::driver
