// What a rank holds of one pipeline chunk in one attempt: its parameters and their gradients, what
// computes with them, its shard of the optimizer. With virtual stages a rank holds several chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/engine/chunks_of_rank.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/instruction.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct RankChunk {
  model::ChunkRange range;
  tensor::Vector weights;  // compute, padded to equal shards; not owned
  // F, padded alike; not owned: in the gradient buffer that the chunk uses first in a step. Each
  // instruction says in which they are. Where gradients are sharded, those of the bucket that is
  // there first.
  tensor::Vector gradients = {};
  std::vector<model::Bucket> buckets = {};
  // By bucket, of the flat space: what an instruction that names it has in its gradient buffer, and
  // what of that is of the next bucket.
  std::vector<BufferedBucket> in_buffer = {};
  // Where gradients are sharded: what calls make of a bucket that has no buffer yet, F, not owned;
  // see model::ChunkParameters.
  tensor::Vector early_gradients = {};
  // This rank's shard of the gradients as they are reduced, by bucket: [part] F, not owned; in
  // `gradients`, or, where gradients are sharded, in memory of its own.
  std::vector<tensor::Vector> gradient_shard = {};
  // By bucket, of the flat space: what each tensor rank has a copy of; adjacent tensors as one.
  std::vector<std::vector<model::FlatRange>> replicated = {};
  std::unique_ptr<model::TransformerChunk> transformer = nullptr;
  std::unique_ptr<optim::ShardedOptimizer> optimizer = nullptr;
};

// The memory for gradients, by plan::Instruction::gradient_buffer; F.
using GradientBuffers = std::vector<tensor::Vector>;

// What a flat space has in `range`. Of a part of the flat space: the elements from `first` on.
inline tensor::Vector PartOf(const tensor::Vector& flat, const model::FlatRange& range,
                             int64_t first = 0) {
  const int64_t begin = range.begin - first;
  MEGASCALE_CHECK(begin >= 0 && begin + range.count <= flat.size);
  return {.data = flat.as<std::byte>() + begin * static_cast<int64_t>(tensor::SizeOf(flat.dtype)),
          .dtype = flat.dtype,
          .size = range.count};
}

// Gradients of a chunk in a gradient buffer.
struct GradientsInBuffer {
  tensor::Vector elements;  // [range.count] F
  model::FlatRange range;   // of the flat space

  tensor::Vector Part(const model::FlatRange& part) const {
    return PartOf(elements, part, range.begin);
  }
};

// What the instruction, which has one, finds there.
inline GradientsInBuffer GradientsOf(const RankChunk& chunk, const plan::Instruction& instruction,
                                     const GradientBuffers& buffers) {
  const tensor::Vector& buffer = buffers.at(static_cast<size_t>(instruction.gradient_buffer));
  const model::FlatRange& range =
      chunk.in_buffer.at(static_cast<size_t>(instruction.id.bucket())).range;
  return {PartOf(buffer, {0, range.count}), range};
}

inline std::vector<tensor::Vector> PartsOf(const tensor::Vector& flat,
                                           const std::vector<model::FlatRange>& ranges) {
  std::vector<tensor::Vector> parts;
  for (const model::FlatRange& range : ranges) parts.push_back(PartOf(flat, range));
  return parts;
}

// A rank's chunks in the model's order, as plan::RankPlan::IndexOfChunk counts them.
using RankChunks = std::vector<RankChunk>;

// The optimizer's state of all of them, chunk after chunk.
inline std::vector<optim::StateSlice> StateOf(const RankChunks& chunks) {
  std::vector<optim::StateSlice> all;
  for (const RankChunk& chunk : chunks) {
    const std::vector<optim::StateSlice> state = chunk.optimizer->State();
    all.insert(all.end(), state.begin(), state.end());
  }
  return all;
}

}  // namespace megascale::engine
