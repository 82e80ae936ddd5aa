// Tells a repeated submit from a submit of another job.
#pragma once

#include "proto/job.pb.h"

namespace megascale::job {

// Returns whether `submitted` repeats `known`. It does if the two are equal, except for fields
// whose default changed: there `known` may have the default of the older version that accepted it,
// and `submitted` the default of this version. So a submit can be repeated after an upgrade. A
// specification does not tell whether the user gave a value or left it out, so a submit that gives
// this version's default explicitly counts as a repetition, too. Only fields that affect speed but
// no bits are compared in this way, so the job continues with the same result. Requires: both are
// resolved and upgraded (job_spec.h).
bool IsSameJob(const v1::JobSpec& known, const v1::JobSpec& submitted);

}  // namespace megascale::job
