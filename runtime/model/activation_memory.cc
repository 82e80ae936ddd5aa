#include "runtime/model/activation_memory.h"

namespace megascale::model {
namespace {

using tensor::Arena;
using tensor::DType;

// Walks over all buffers; with an arena it allocates them, without one it only counts.
class Planner {
 public:
  Planner(const ChunkOptions& options, Arena* arena)
      : options_(options),
        config_(options.config),
        accumulation_(AccumulationType(options.compute)),
        tokens_(options.micro_batch * options.seq),
        arena_(arena) {}

  size_t bytes() const { return bytes_; }

  ChunkMemory Plan() {
    ChunkMemory memory;
    for (int i = 0; i < options_.num_slots; ++i) memory.slots.push_back(Slot());
    memory.scratch = Scratch();
    return memory;
  }

 private:
  Vector NewVector(DType dtype, int64_t size) {
    bytes_ += Arena::BytesFor(dtype, size);
    return arena_ != nullptr ? arena_->Allocate(dtype, size) : Vector{nullptr, dtype, size};
  }

  // [N, cols] in compute.
  Matrix NewMatrix(int64_t cols) {
    bytes_ += Arena::BytesFor(options_.compute, tokens_ * cols);
    return arena_ != nullptr ? arena_->AllocateMatrix(options_.compute, tokens_, cols) : Matrix{};
  }

  SlotMemory Slot() {
    SlotMemory slot;
    if (options_.range.has_embedding) slot.tokens_N = NewVector(DType::kI32, tokens_);
    if (options_.range.has_head) slot.targets_N = NewVector(DType::kI32, tokens_);
    slot.input_NC = NewMatrix(config_.hidden_size);
    slot.gradient_NC = NewMatrix(config_.hidden_size);
    if (!options_.range.has_head) slot.output_NC = NewMatrix(config_.hidden_size);
    for (int i = 0; i < options_.range.num_layers; ++i) {
      // The first layer reads the chunk's input as it is; each other one adds up its predecessor's.
      const Matrix x_NC = i == 0 ? slot.input_NC : NewMatrix(config_.hidden_size);
      slot.layers.push_back(Layer(x_NC));
    }
    return slot;
  }

  BlockActivations Layer(const Matrix& x_NC) {
    BlockActivations layer;
    layer.input_norm = Norm(x_NC);
    layer.qkv_NQ = NewMatrix(config_.qkv_size());
    layer.attention_NA = NewMatrix(config_.num_heads * config_.head_dim);
    layer.log_sum_exp_BHT = NewVector(accumulation_, tokens_ * config_.num_heads);
    if (config_.has_mlp_norm()) {
      // In a parallel block both norms read one stream.
      layer.post_attention_norm =
          Norm(config_.parallel_block ? x_NC : NewMatrix(config_.hidden_size));
    }
    layer.up_NU = NewMatrix(config_.up_size());
    layer.inner_NI = NewMatrix(config_.intermediate_size);
    return layer;
  }

  NormActivations Norm(const Matrix& x_NC) {
    NormActivations norm;
    norm.x_NC = x_NC;
    norm.out_NC = NewMatrix(config_.hidden_size);
    if (config_.norm == ops::NormKind::kLayerNorm) norm.mean_N = NewVector(accumulation_, tokens_);
    norm.rstd_N = NewVector(accumulation_, tokens_);
    return norm;
  }

  ChunkScratch Scratch() {
    ChunkScratch scratch;
    if (config_.parallel_block) scratch.block.attention_out_NC = NewMatrix(config_.hidden_size);
    scratch.block.d_inner_NI = NewMatrix(config_.intermediate_size);
    scratch.block.d_up_NU = NewMatrix(config_.up_size());
    scratch.block.d_norm_NC = NewMatrix(config_.hidden_size);
    scratch.block.d_attention_NA = NewMatrix(config_.num_heads * config_.head_dim);
    scratch.block.d_qkv_NQ = NewMatrix(config_.qkv_size());
    scratch.delta_NC = NewMatrix(config_.hidden_size);
    if (options_.range.has_head) {
      scratch.final_norm = Norm(NewMatrix(config_.hidden_size));
      scratch.logits_NV = NewMatrix(config_.vocab_size);
    }
    return scratch;
  }

  const ChunkOptions& options_;
  const ModelConfig& config_;
  const DType accumulation_;
  const int64_t tokens_;
  Arena* const arena_;
  size_t bytes_ = 0;
};

}  // namespace

size_t ChunkMemoryBytes(const ChunkOptions& options) {
  Planner planner(options, nullptr);
  planner.Plan();
  return planner.bytes();
}

ChunkMemory AllocateChunkMemory(const ChunkOptions& options, Arena* arena) {
  return Planner(options, arena).Plan();
}

}  // namespace megascale::model
