// The memory of one pipeline chunk, planned once: which buffers exist, with which sizes. Internal
// to TransformerChunk, but for ChunkOptions. Of several tensor ranks each has its part: 1/t of
// nearly all of it. Legend of suffixes: transformer_block.h.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/model/transformer_block.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

struct ChunkOptions {
  ModelConfig config;  // of the whole model, whatever `tensor`
  ChunkRange range = {};
  int64_t micro_batch = 1;  // samples in a micro-batch
  int64_t seq = 0;          // tokens in a sample
  int num_slots = 1;        // micro-batches in flight: the most that the schedule holds at once
  tensor::DType compute = tensor::DType::kF32;
  // Whether backward may come in two parts, BackwardInput and BackwardWeights. Takes no memory of
  // its own (BlockActivations says why), but a slot is held until its second part.
  bool split_backward = false;
  // What to compute twice rather than to keep; not with split_backward, whose second part needs
  // all of it.
  Recompute recompute = Recompute::kNone;
  TensorPlace tensor = {};  // which of the ranks that hold the chunk together
};

// Buffers of one micro-batch in flight.
struct SlotMemory {
  Vector tokens_N;     // I32; first chunk
  Vector targets_N;    // I32; last chunk
  Matrix input_RC;     // received, or the embedding's output
  Matrix output_RC;    // not the last chunk's
  Matrix gradient_RC;  // of the output, then of the input
  std::vector<BlockActivations> layers;
};

// Buffers that every micro-batch uses in turn.
struct ChunkScratch {
  BlockScratch block;
  Matrix delta_RC;             // what a layer adds to the residual stream; forward
  NormActivations final_norm;  // last chunk
  Matrix logits_NV;            // last chunk; this rank's columns; then their gradient
  // Last chunk, several tensor ranks: LogitStatistics of this rank's columns, and of every rank's.
  Vector statistics_3N;       // F
  Vector all_statistics_P3N;  // F
};

struct ChunkMemory {
  std::vector<SlotMemory> slots;
  ChunkScratch scratch;
};

// Bytes of all buffers.
size_t ChunkMemoryBytes(const ChunkOptions& options);

// Takes all buffers from `arena`. Requires: ChunkMemoryBytes(options) free bytes in it.
ChunkMemory AllocateChunkMemory(const ChunkOptions& options, tensor::Arena* arena);

}  // namespace megascale::model
