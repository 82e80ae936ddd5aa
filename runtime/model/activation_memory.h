// The memory of one pipeline chunk, planned once: its buffers and their sizes. Internal to
// TransformerChunk, except for ChunkOptions. With t tensor ranks each rank has 1/t of nearly all
// buffers. Legend of suffixes: transformer_block.h.
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
  ModelConfig config;  // of the whole model, not of a tensor rank's part
  ChunkRange range = {};
  int64_t micro_batch = 1;  // samples in a micro-batch
  int64_t seq = 0;          // tokens in a sample
  int num_slots = 1;        // the most micro-batches that the schedule has in flight
  tensor::DType compute = tensor::DType::kF32;
  // Whether backward may come in two parts, BackwardInput and BackwardWeights. Needs no extra
  // memory (BlockActivations says why), but a slot is in use until the second part has run.
  bool split_backward = false;
  // Activations to recompute instead of keeping them. Excludes split_backward, whose second part
  // needs all activations.
  Recompute recompute = Recompute::kNone;
  // The caller uses only Continue, with up to micro_batch * seq tokens. All layers share one set of
  // activations, and there are no buffers for backward. Excludes several tensor ranks.
  bool generates = false;
  // Attention stays within documents, and learned positions count from the beginning of each
  // document. Slots then have document_begins. Not for Continue, where each sequence is one
  // document.
  bool within_documents = false;
  TensorPlace tensor = {};  // this rank's place among the ranks that hold the chunk together
};

// Buffers of one micro-batch in flight.
struct SlotMemory {
  Vector tokens_N;           // I32; first chunk
  Vector targets_N;          // I32; last chunk
  Vector document_begins_N;  // I32, as in ops::AttentionArgs; every chunk, with within_documents
  Matrix input_RC;           // received, or the embedding's output
  Matrix output_RC;          // all chunks but the last
  Matrix gradient_RC;        // the gradient of the output, later of the input
  std::vector<BlockActivations> layers;
};

// Buffers that all micro-batches use, one after the other.
struct ChunkScratch {
  BlockScratch block;
  Matrix delta_RC;             // a layer's addition to the residual stream; forward
  NormActivations final_norm;  // last chunk
  // Last chunk; this rank's columns of the logits, then their gradient. For generation: at most
  // ops::kFewRows rows.
  Matrix logits_NV;
  // Last chunk with several tensor ranks: LogitStatistics of this rank's columns, and of every
  // rank's.
  Vector statistics_3N;       // F
  Vector all_statistics_P3N;  // F
};

struct ChunkMemory {
  std::vector<SlotMemory> slots;
  ChunkScratch scratch;
};

// Returns the bytes of all buffers.
size_t ChunkMemoryBytes(const ChunkOptions& options);

// Takes all buffers from `arena`. Requires: ChunkMemoryBytes(options) free bytes in `arena`.
ChunkMemory AllocateChunkMemory(const ChunkOptions& options, tensor::Arena* arena);

}  // namespace megascale::model
