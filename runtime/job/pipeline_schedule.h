// The pipeline schedule of a job: its name in a specification and in a plan. What it needs, does
// and defaults to, runtime/plan knows. Thread-safe: pure functions.
#pragma once

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "runtime/plan/schedule.h"

namespace megascale::job {

// As the job asks for it; see plan::ScheduleInUse. Requires: parallelism, batch sizes and schedule
// are filled in.
plan::ScheduleOptions ScheduleOf(const v1::JobSpec& spec);

v1::PipelineSchedule DefaultSchedule(int chunks_per_stage);

// Requires: as ScheduleOf. Errors: InvalidArgument - what plan::FindMisfit finds, with the field of
// the specification that it is and the sum that fails.
absl::Status CheckSchedule(const v1::JobSpec& spec);

}  // namespace megascale::job
