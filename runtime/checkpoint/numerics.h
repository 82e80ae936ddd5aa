// The settings that determine the bits of a training. A resume with other settings is refused
// unless the user allows it. Threads: plain functions.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace megascale::checkpoint {

// Increase it with every change that makes a step compute other bits, or changes the order of
// samples.
inline constexpr absl::string_view kNumericsVersion = "4";

// Returns the fingerprint of a resolved job on machines of `instruction_set`. Fields are named
// "area" or "area.field". The areas are the units that a user may allow to change: device, model,
// optimizer, batch, precision, seed, layout, threads_per_rank, instruction_set, onednn,
// megascale_numerics; and products, which a manifest adds (product_table.h). Fields that the job
// does not set are left out. So are the number of steps, the schedule of the learning rate,
// evaluations, paths, retention and intervals, because a job may be prolonged and moved.
megascale::checkpoint::v1::NumericsFingerprint MakeNumericsFingerprint(
    const megascale::job::v1::JobSpec& spec, absl::string_view instruction_set);

// Returns what a user may allow to change: the areas, and "data".
std::vector<absl::string_view> NumericsAreas();

// Checks one of the names by which a user allows a change: an area, "data" or "all". `field` names
// where it was given. Errors: InvalidArgument - with the nearest name.
absl::Status CheckAllowed(absl::string_view field, absl::string_view name);

// Whether the user allows the job to differ in `area` from the checkpoint that it begins from.
// `names`: areas, or "all".
template <typename Names>
bool AllowsChange(const Names& names, absl::string_view area) {
  return std::any_of(names.begin(), names.end(),
                     [&](const auto& name) { return name == area || name == "all"; });
}

// Returns OK if both fingerprints are equal, except for areas in `allow_changed` (or "all").
// Errors: FailedPrecondition - one line: which field changed, its two values, and the flag that
// allows it.
absl::Status CompareFingerprints(const megascale::checkpoint::v1::NumericsFingerprint& kept,
                                 const megascale::checkpoint::v1::NumericsFingerprint& now,
                                 const std::vector<std::string>& allow_changed);

// The same for the training text, whose area is "data". Either may have a digest in place of the
// list of files (runtime/job/data_digest.h); then no file is named.
absl::Status CompareFingerprints(const megascale::checkpoint::v1::DataFingerprint& kept,
                                 const megascale::checkpoint::v1::DataFingerprint& now,
                                 const std::vector<std::string>& allow_changed);

}  // namespace megascale::checkpoint
