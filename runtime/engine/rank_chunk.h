// What a rank holds of one pipeline chunk in one attempt: its parameters and their gradients, what
// computes with them, its shard of the optimizer. With virtual stages a rank holds several chunks.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct RankChunk {
  model::ChunkRange range;
  tensor::Vector weights;  // compute, padded to equal shards; not owned
  // F, padded alike; not owned: in the gradient buffer that the chunk uses first in a step. Each
  // instruction says in which they are.
  tensor::Vector gradients = {};
  std::vector<model::Bucket> buckets = {};
  // This rank's shard, by bucket: [part], not owned. Of the weights, in compute; and of the
  // gradients as they are reduced, in F: in `gradients`, or, where gradients are sharded, in memory
  // of its own.
  std::vector<tensor::Vector> weight_shard = {};
  std::vector<tensor::Vector> gradient_shard = {};
  // By bucket, of the flat space: what each tensor rank has a copy of; adjacent tensors as one.
  std::vector<std::vector<model::FlatRange>> replicated = {};
  std::unique_ptr<model::TransformerChunk> transformer = nullptr;
  std::unique_ptr<optim::ShardedOptimizer> optimizer = nullptr;
};

// The memory for whole chunks' gradients, by plan::Instruction::gradient_buffer; F.
using GradientBuffers = std::vector<tensor::Vector>;

// The chunk's gradients in one of them. Requires: the plan lets the chunk use it.
inline tensor::Vector GradientsIn(const RankChunk& chunk, const tensor::Vector& buffer) {
  MEGASCALE_CHECK(buffer.size >= chunk.weights.size);
  return {.data = buffer.data, .dtype = buffer.dtype, .size = chunk.weights.size};
}

// What a flat space has in `range`.
inline tensor::Vector PartOf(const tensor::Vector& flat, const model::FlatRange& range) {
  MEGASCALE_CHECK(range.begin + range.count <= flat.size);
  return {.data = flat.as<std::byte>() + range.begin * tensor::SizeOf(flat.dtype),
          .dtype = flat.dtype,
          .size = range.count};
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
