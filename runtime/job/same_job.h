// Tells a repeated submit from that of another job.
#pragma once

#include "proto/job.pb.h"

namespace megascale::job {

// Returns whether `submitted` repeats `known`, both resolved and upgraded (job_spec.h). They are
// equal, except for fields whose default changed: `known` may have the default of the version that
// took it where `submitted` has this version's. So a submit can be repeated after an upgrade. A
// specification does not say whether a default was given or left out: a submit that asks for this
// version's default by name counts as a repetition, too. Only fields that affect speed and no bits
// are compared in this way, so the job continues with the same result.
bool IsSameJob(const v1::JobSpec& known, const v1::JobSpec& submitted);

}  // namespace megascale::job
