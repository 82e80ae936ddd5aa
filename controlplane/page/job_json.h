// What the page shows of jobs and machines, as JSON. Pure functions. Names and messages come from
// users and from other machines: control characters are shown, and the page puts them in as text.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "controlplane/page/failure_history.h"
#include "nlohmann/json.hpp"
#include "proto/control.pb.h"

namespace megascale::page {

// "RUNNING"
std::string StateWord(control::v1::JobState state);

// Returns the share of the machines' peak that the job's model uses; 0: unknown.
double MfuOf(const control::v1::Job& job);

// A line of the list of jobs, and the figures at the top of a job's page.
nlohmann::json JobSummary(const control::v1::Job& job);

// The same, with the failures, the warnings and the checkpoint.
nlohmann::json JobDetails(const control::v1::Job& job, absl::Span<const ObservedFailure> failures);

// Curves over steps, as arrays of equal length.
nlohmann::json StepColumns(const control::v1::Job& job,
                           absl::Span<const telemetry::v1::StepRecord> steps);

nlohmann::json MachinesJson(const control::v1::GetClusterResponse& cluster);

}  // namespace megascale::page
