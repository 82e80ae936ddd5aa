// A rank's shard of the optimizer's state as part of a checkpoint: laid out once, copied into a
// snapshot buffer after a step, read back from a snapshot or from storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/agent.pb.h"
#include "runtime/base/shared_memory.h"
#include "runtime/checkpoint/shard.h"
#include "runtime/optim/sharded_optimizer.h"

namespace megascale::engine {

// Where each slice of the state (ShardedOptimizer::State or StateLayout) lies in the shard of
// `rank`.
absl::StatusOr<checkpoint::ShardLayout> LayoutOf(int rank,
                                                 const std::vector<optim::StateSlice>& state);

// Writes the whole shard into `payload`, which has layout.size_bytes() bytes. `state`: as the
// layout was made for.
void CopyStateOut(const checkpoint::ShardLayout& layout,
                  const std::vector<optim::StateSlice>& state,
                  const checkpoint::ShardMoment& moment, absl::Span<std::byte> payload);

// Overwrites the memory of `state` by what `restore` names: a sealed snapshot in `snapshots`, or a
// checkpoint of any layout on storage. Errors: DataLoss - a checksum differs; NotFound - it is not
// there, or lacks a tensor.
absl::Status RestoreState(const megascale::agent::v1::RestorePoint& restore,
                          const base::SharedMemory* snapshots,
                          const std::vector<optim::StateSlice>& state);

}  // namespace megascale::engine
