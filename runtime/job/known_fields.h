// Checks that this version knows all that a job asks for. Protocol buffers keep fields and values
// that a newer program added. A reader that ignored these would train a different job than the user
// asked for.
#pragma once

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace megascale::job {

// Errors: FailedPrecondition - `spec` has a field or a value of an enumeration that only a newer
// version knows; the message names it.
absl::Status CheckIsKnown(const v1::JobSpec& spec);

}  // namespace megascale::job
