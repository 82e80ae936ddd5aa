// What the bits of a training depend on, so that a resume under anything else is refused unless it
// is allowed. Source: DESIGN section 9 "Numerics". Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace megascale::checkpoint {

// Raise it with every change that makes a step compute other bits, or samples come in another
// order.
inline constexpr absl::string_view kNumericsVersion = "3";

// The fingerprint of a resolved job on machines of `instruction_set`. Fields are named "area" or
// "area.field", the areas being what may be allowed to change: model, optimizer, batch, precision,
// seed, layout, threads_per_rank, instruction_set, onednn, megascale_numerics. Fields of the job
// that are unset are left out. So are the number of steps, paths, retention and intervals: a job
// may be prolonged and moved.
megascale::checkpoint::v1::NumericsFingerprint MakeNumericsFingerprint(
    const megascale::job::v1::JobSpec& spec, absl::string_view instruction_set);

// OK when both are equal but for what `allow_changed` names (areas, or "all").
// Errors: FailedPrecondition - one line: what changed, from what to what, and the flag that allows
// it.
absl::Status CompareFingerprints(const megascale::checkpoint::v1::NumericsFingerprint& kept,
                                 const megascale::checkpoint::v1::NumericsFingerprint& now,
                                 const std::vector<std::string>& allow_changed);

// The same for the training text; its area is "data".
absl::Status CompareFingerprints(const megascale::checkpoint::v1::DataFingerprint& kept,
                                 const megascale::checkpoint::v1::DataFingerprint& now,
                                 const std::vector<std::string>& allow_changed);

}  // namespace megascale::checkpoint
