// The mesh of a job and what each of its ranks does now, as JSON. Pure functions of the driver's
// view of the job; no spans are needed, so they work for jobs of any size.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "controlplane/page/failure_history.h"
#include "nlohmann/json.hpp"
#include "proto/control.pb.h"
#include "runtime/plan/mesh.h"

namespace megascale::page {

// Returns all ranks as arrays by rank, and about kWaitsMax pairs [rank, rank that it waits for] at
// most. Errors: InvalidArgument - the job has no mesh.
inline constexpr size_t kWaitsMax = 2000;
absl::StatusOr<nlohmann::json> RanksJson(const control::v1::Job& job);

// Returns the mesh, the rank's neighbours and groups, what the rank does and for which ranks it
// waits, and its newest failure among `failures`, which are oldest first. Errors: as above;
// NotFound - the job has no such rank.
absl::StatusOr<nlohmann::json> RankJson(const control::v1::Job& job, int rank,
                                        absl::Span<const ObservedFailure> failures);

}  // namespace megascale::page
