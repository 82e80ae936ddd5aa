#include "runtime/engine/parameter_memory.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/instruction.h"

namespace megascale::engine {
namespace {

// The sizes and types of everything, without memory.
ParameterMemory Describe(const layout::RankLayout& part, const plan::RankPlan& plan) {
  const tensor::DType dtype = part.compute;
  const tensor::DType accumulation = AccumulationType(dtype);
  const layout::GradientSizes sizes = layout::GradientSizesOf(part, plan);
  ParameterMemory made;
  for (const optim::OptimizerShard& shard : part.shards) {
    const model::ChunkLayout layout = shard.layout();
    made.chunks.push_back({.range = shard.range,
                           .weights = {nullptr, dtype, layout.padded_elements(shard.num_shards)},
                           .buckets = part.BucketsOf(layout),
                           .in_buffer = part.InGradientBuffers(layout)});
    ChunkState& chunk = made.chunks.back();
    for (const model::Bucket& bucket : chunk.buckets) {
      chunk.replicated.push_back(layout::ReplicatedRanges(layout, bucket.range));
      if (!plan.shards_gradients) continue;
      chunk.gradient_shard.push_back(
          {nullptr, accumulation, bucket.range.count / shard.num_shards});
    }
    if (!sizes.early.empty()) {
      chunk.early_gradients = {nullptr, accumulation, sizes.early[made.chunks.size() - 1]};
    }
  }
  for (const int64_t elements : sizes.buffers) {
    made.gradient_buffers.push_back({nullptr, accumulation, elements});
  }
  made.carried = {nullptr, accumulation, sizes.carried};
  made.replicated = {nullptr, accumulation, sizes.replicated};
  made.tied_ends.embedding = {nullptr, dtype, part.borrows_embedding() ? sizes.head : 0};
  made.tied_ends.head_gradient = {nullptr, accumulation, sizes.head};
  return made;
}

// In the order in which they lie in memory.
std::vector<tensor::Vector*> SpacesOf(ParameterMemory* memory) {
  std::vector<tensor::Vector*> spaces;
  for (ChunkState& chunk : memory->chunks) spaces.push_back(&chunk.weights);
  for (tensor::Vector& buffer : memory->gradient_buffers) spaces.push_back(&buffer);
  for (ChunkState& chunk : memory->chunks) {
    for (tensor::Vector& part : chunk.gradient_shard) spaces.push_back(&part);
    spaces.push_back(&chunk.early_gradients);
  }
  spaces.insert(spaces.end(), {&memory->carried, &memory->replicated});
  spaces.insert(spaces.end(), {&memory->tied_ends.embedding, &memory->tied_ends.head_gradient});
  return spaces;
}

}  // namespace

absl::StatusOr<ParameterMemory> AllocateParameters(const layout::RankLayout& part,
                                                   const plan::RankPlan& plan, bool for_peers,
                                                   device::DeviceArenas* arenas) {
  ParameterMemory made = Describe(part, plan);
  const std::vector<tensor::Vector*> spaces = SpacesOf(&made);
  RETURN_IF_ERROR(for_peers ? arenas->FillForPeers("parameters", spaces)
                            : arenas->Fill("parameters", spaces));
  for (const plan::Instruction& instruction : plan.instructions) {
    if (instruction.gradient_buffer == plan::kNoBuffer) continue;
    ChunkState& chunk = made.chunks[static_cast<size_t>(plan.IndexOfChunk(instruction.id.chunk()))];
    if (chunk.gradients) continue;
    chunk.gradients = GradientsOf(chunk, instruction, made.gradient_buffers).elements;
  }
  if (part.borrows_embedding()) {
    made.chunks.back().head_weight = made.tied_ends.embedding;
    made.chunks.back().head_gradient = made.tied_ends.head_gradient;
  } else if (part.exchanged_embedding > 0) {
    // The embedding comes first in the flat space.
    made.tied_ends.embedding = Slice(made.chunks.front().weights, {0, part.exchanged_embedding});
  }
  return made;
}

}  // namespace megascale::engine
