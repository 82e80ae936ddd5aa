// The pipeline schedule of a job: converts between its name in a specification and in a plan.
// runtime/plan defines what each schedule needs and does, and which one is the default. Threads:
// any; pure functions.
#pragma once

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "runtime/plan/schedule.h"

namespace megascale::job {

// Returns the schedule that the job asks for; see plan::ScheduleInUse. Requires: parallelism, batch
// sizes and schedule are filled in.
plan::ScheduleOptions ScheduleOf(const v1::JobSpec& spec);

v1::PipelineSchedule DefaultSchedule(int chunks_per_stage);

// Checks that the schedule fits the job. Requires: as ScheduleOf. Errors: InvalidArgument - the
// misfit that plan::FindMisfit found, with the specification's field and the check that fails.
absl::Status CheckSchedule(const v1::JobSpec& spec);

}  // namespace megascale::job
