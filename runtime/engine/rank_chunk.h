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
  // [shard] F: this rank's shard of them as they are reduced; a part of `gradients`, or, where
  // gradients are sharded, memory of its own. Not owned.
  tensor::Vector gradient_shard = {};
  // Of the flat space: what each tensor rank has a copy of; adjacent tensors as one.
  std::vector<model::FlatRange> replicated = {};
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

// This rank's shard of a flat space of the chunk.
inline tensor::Vector ShardOf(const RankChunk& chunk, const tensor::Vector& flat) {
  const model::FlatRange range = chunk.optimizer->range();
  return {.data = flat.as<std::byte>() + range.begin * tensor::SizeOf(flat.dtype),
          .dtype = flat.dtype,
          .size = range.count};
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
