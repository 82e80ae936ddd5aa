// Where a rank's state lies in its shard of a checkpoint. A pure function.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/optim/sharded_optimizer.h"

namespace megascale::layout {

// Returns where each slice of `state` (ShardedOptimizer::State or StateLayout) lies in the shard of
// `rank`.
absl::StatusOr<checkpoint::ShardLayout> SnapshotLayoutOf(
    int rank, const std::vector<optim::StateSlice>& state);

}  // namespace megascale::layout
