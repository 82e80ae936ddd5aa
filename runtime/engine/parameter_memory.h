// The device memory of a rank's weights and gradients.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/device/device_arenas.h"
#include "runtime/engine/chunk_state.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

// Zeroed; borrowed from the arenas that it was allocated from.
struct ParameterMemory {
  ChunkStates chunks;  // without transformers and optimizers, and so without shards of ZeRO stage 1
  GradientBuffers gradient_buffers;
  TiedEnds tied_ends;
  tensor::Vector carried;     // F; what one piece of a backward hands to the next
  tensor::Vector replicated;  // F; the replicated gradients of a bucket; tensor parallelism only
};

// Allocates the memory that `plan` needs for the chunks of `part`. `for_peers`: where possible,
// ranks on this machine may read it (DeviceArenas::readable). Errors: as Device::Allocate.
absl::StatusOr<ParameterMemory> AllocateParameters(const layout::RankLayout& part,
                                                   const plan::RankPlan& plan, bool for_peers,
                                                   device::DeviceArenas* arenas);

}  // namespace megascale::engine
