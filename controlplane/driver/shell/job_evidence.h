// What is kept of a job that has ended: evidence.json in its folder, beside job.json and the loss
// log. It stays readable when the job's machines, or the driver's record of them, are gone.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/storage/job_files.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns the evidence of a job that has ended. `ranks`: what its ranks did when its last failure
// became known.
megascale::control::v1::JobEvidence EvidenceOf(
    const DriverState& state, const JobRecord& job, int64_t last_step,
    const std::vector<megascale::control::v1::RankView>& ranks);

bool HasEvidence(const JobRecord& job, JobFiles* files);
absl::Status WriteEvidence(const JobRecord& job,
                           const megascale::control::v1::JobEvidence& evidence, JobFiles* files);
// Errors: NotFound - there is no such file; DataLoss - it cannot be parsed.
absl::StatusOr<megascale::control::v1::JobEvidence> ReadEvidence(const JobRecord& job,
                                                                 JobFiles* files);

}  // namespace megascale::driver
