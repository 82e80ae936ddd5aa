// Checks that a step plan can be built from its options.
#pragma once

#include "absl/status/status.h"
#include "runtime/plan/plan_options.h"

namespace megascale::plan {

// Errors: InvalidArgument - a rank outside the mesh, sizes below their minimum, more micro-batches,
// chunks or buckets than an id can name, the wrong number of costs. The message says what was
// expected.
absl::Status CheckOptions(const PlanOptions& options, int rank);

}  // namespace megascale::plan
