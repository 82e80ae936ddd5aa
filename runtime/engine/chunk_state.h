// One pipeline chunk as a rank holds it during an attempt: its parameters and gradients, the code
// that computes with them, and its optimizer shard. With virtual stages a rank holds several
// chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/instruction.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct ChunkState {
  model::ChunkRange range;
  tensor::Vector weights;  // in the compute type, padded to equal shards; borrowed
  // Padded like `weights`, in the accumulation type (F); borrowed. Lies in the gradient buffer that
  // the chunk uses first in a step; each instruction names the buffer of its own sum. With ZeRO
  // stage 2 it covers only the bucket that uses that buffer first.
  tensor::Vector gradients = {};
  std::vector<model::Bucket> buckets = {};
  // By bucket: the flat range that an instruction of the bucket has in its gradient buffer, and the
  // part of it that belongs to the next bucket.
  std::vector<layout::BufferedBucket> in_buffer = {};
  // With ZeRO stage 2: gradients that passes make for a bucket before it has a buffer, F; borrowed.
  // See model::ChunkParameters.
  tensor::Vector early_gradients = {};
  // This rank's shard of the reduced gradients, by bucket: [part] F, borrowed. Lies within
  // `gradients`, or with ZeRO stage 2 in memory of its own.
  std::vector<tensor::Vector> gradient_shard = {};
  // By bucket: the flat ranges of which other tensor ranks have copies.
  std::vector<std::vector<layout::CopiedRange>> replicated = {};
  // With tied ends, on the last chunk: see model::ChunkParameters; borrowed.
  tensor::Vector head_weight = {};
  tensor::Vector head_gradient = {};
  std::unique_ptr<model::TransformerChunk> transformer = nullptr;
  std::unique_ptr<optim::ShardedOptimizer> optimizer = nullptr;

  model::ChunkParameters Parameters() const {
    return {.weights = weights,
            .gradients = gradients,
            .early_gradients = early_gradients,
            .head_weight = head_weight,
            .head_gradient = head_gradient};
  }
};

// With tied ends, what the first and the last stage exchange, [EmbeddingElements] each; otherwise
// empty. Borrowed.
struct TiedEnds {
  tensor::Vector embedding;      // compute; first stage: the parameter; last stage: a copy
  tensor::Vector head_gradient;  // F; last stage: summed over the step; first stage: as received
};

// The memory for gradients, indexed by plan::Instruction::gradient_buffer; F.
using GradientBuffers = std::vector<tensor::Vector>;

// Returns the elements of `range`. `flat` holds the flat space from element `first` on.
inline tensor::Vector Slice(const tensor::Vector& flat, const model::FlatRange& range,
                            int64_t first = 0) {
  const int64_t begin = range.begin - first;
  MEGASCALE_CHECK(begin >= 0 && begin + range.count <= flat.size);
  return {.data = flat.as<std::byte>() + begin * static_cast<int64_t>(tensor::SizeOf(flat.dtype)),
          .dtype = flat.dtype,
          .size = range.count};
}

// The part of a gradient buffer that holds gradients of a chunk.
struct GradientsInBuffer {
  tensor::Vector elements;  // [range.count] F
  model::FlatRange range;   // in the flat space

  tensor::Vector Part(const model::FlatRange& part) const {
    return Slice(elements, part, range.begin);
  }
};

// Returns the gradients that `instruction` works on. Requires: it has a gradient buffer.
inline GradientsInBuffer GradientsOf(const ChunkState& chunk, const plan::Instruction& instruction,
                                     const GradientBuffers& buffers) {
  const tensor::Vector& buffer = buffers.at(static_cast<size_t>(instruction.gradient_buffer));
  const model::FlatRange& range =
      chunk.in_buffer.at(static_cast<size_t>(instruction.id.bucket())).range;
  return {Slice(buffer, {0, range.count}), range};
}

inline std::vector<tensor::Vector> Slices(const tensor::Vector& flat,
                                          const std::vector<model::FlatRange>& ranges) {
  std::vector<tensor::Vector> parts;
  for (const model::FlatRange& range : ranges) parts.push_back(Slice(flat, range));
  return parts;
}

// A rank's chunks in the model's order; indexed by plan::RankPlan::IndexOfChunk.
using ChunkStates = std::vector<ChunkState>;

// Returns the optimizer state of all chunks, chunk after chunk.
inline std::vector<optim::StateSlice> StateOf(const ChunkStates& chunks) {
  std::vector<optim::StateSlice> all;
  for (const ChunkState& chunk : chunks) {
    const std::vector<optim::StateSlice> state = chunk.optimizer->State();
    all.insert(all.end(), state.begin(), state.end());
  }
  return all;
}

}  // namespace megascale::engine
