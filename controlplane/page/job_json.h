// What the page shows of jobs and machines, as JSON. Pure functions. Names and messages come from
// users and from other machines, so control characters are made visible, and the page inserts all
// of it as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "controlplane/page/failure_history.h"
#include "nlohmann/json.hpp"
#include "proto/control.pb.h"

namespace megascale::page {

// True if the machine may run jobs: it reports, and is neither evicted, draining nor quarantined.
bool IsWell(const control::v1::NodeView& node);

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

// Machines that are not well come first, then those that a running job suspects. "left_out" counts
// the machines that were left out, because the answer would be too long.
nlohmann::json MachinesJson(const control::v1::GetClusterResponse& cluster,
                            absl::Span<const control::v1::Job> jobs);

// Appends the element, unless the list as text would then be longer than `bytes_max`. `num_bytes`:
// the length of the list as text so far; 0 for an empty list. Returns whether it was appended.
inline constexpr size_t kListBytesMax = 900'000;
bool AppendWithin(size_t bytes_max, nlohmann::json element, nlohmann::json* list,
                  size_t* num_bytes);

}  // namespace megascale::page
