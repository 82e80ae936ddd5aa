#include "runtime/model/activation_memory.h"

#include <algorithm>

namespace megascale::model {
namespace {

using tensor::Arena;
using tensor::DType;

// Visits all buffers: with an arena it allocates them, without one it only counts their bytes.
class Planner {
 public:
  Planner(const ChunkOptions& options, Arena* arena)
      : options_(options),
        config_(PartOfTensorRank(options.config, options.tensor.size)),
        accumulation_(AccumulationType(options.compute)),
        tokens_(options.micro_batch * options.seq),
        rows_(tokens_ / options.tensor.size),
        arena_(arena) {}

  size_t bytes() const { return bytes_; }

  ChunkMemory Plan() {
    ChunkMemory memory;
    shared_ = Shared();
    for (int i = 0; i < options_.num_slots; ++i) memory.slots.push_back(Slot());
    memory.scratch = Scratch();
    return memory;
  }

 private:
  Vector NewVector(DType dtype, int64_t size) {
    bytes_ += Arena::BytesFor(dtype, size);
    return arena_ != nullptr ? arena_->Allocate(dtype, size) : Vector{nullptr, dtype, size};
  }

  Matrix NewMatrix(int64_t rows, int64_t cols) {
    bytes_ += Arena::BytesFor(options_.compute, rows * cols);
    return arena_ != nullptr ? arena_->AllocateMatrix(options_.compute, rows, cols) : Matrix{};
  }
  // Returns a matrix [N, cols] in compute.
  Matrix AllRows(int64_t cols) { return NewMatrix(tokens_, cols); }
  // Returns a matrix [R, C] in compute.
  Matrix OwnRows() { return NewMatrix(rows_, config_.hidden_size); }

  SlotMemory Slot() {
    SlotMemory slot;
    if (options_.range.has_embedding) slot.tokens_N = NewVector(DType::kI32, tokens_);
    if (options_.range.has_head) slot.targets_N = NewVector(DType::kI32, tokens_);
    if (options_.within_documents) slot.document_begins_N = NewVector(DType::kI32, tokens_);
    slot.input_RC = OwnRows();
    if (!options_.generates) slot.gradient_RC = OwnRows();
    if (!options_.range.has_head) slot.output_RC = OwnRows();
    for (int i = 0; i < options_.range.num_layers; ++i) {
      // The first layer reads the chunk's input directly; the others add up their predecessor's
      // results.
      const Matrix x_RC = i == 0 ? slot.input_RC : OwnRows();
      slot.layers.push_back(Layer(x_RC));
    }
    return slot;
  }

  // Which activations all layers share.
  bool SharesProducts() const {
    return options_.recompute == Recompute::kFull || options_.generates;
  }
  bool SharesOthers() const { return options_.recompute != Recompute::kNone || options_.generates; }

  // Activations that each layer recomputes before its backward, into shared memory.
  BlockActivations Shared() {
    BlockActivations shared;
    if (SharesProducts()) AddProducts(&shared);
    if (SharesOthers()) AddWithoutProducts(&shared);
    return shared;
  }

  BlockActivations Layer(const Matrix& x_RC) {
    BlockActivations layer = shared_;
    layer.input_norm.x_RC = x_RC;
    // In a parallel block both norms read the same stream.
    if (config_.has_mlp_norm() && config_.parallel_block) layer.post_attention_norm.x_RC = x_RC;
    if (!SharesProducts()) AddProducts(&layer);
    if (!SharesOthers()) AddWithoutProducts(&layer);
    return layer;
  }

  // Adds activations that take matrix products to compute.
  void AddProducts(BlockActivations* layer) {
    layer->qkv_NQ = AllRows(config_.qkv_size());
    if (config_.qk_norm) {
      layer->qk_NS = AllRows(config_.qk_size());
      layer->qk_rstd_HKN =
          NewVector(accumulation_, tokens_ * (config_.num_heads + config_.num_kv_heads));
    }
    layer->attention_NA = AllRows(config_.num_heads * config_.head_dim);
    layer->log_sum_exp_BHT = NewVector(accumulation_, tokens_ * config_.num_heads);
    if (!config_.parallel_block) layer->post_attention_norm.x_RC = OwnRows();
    layer->up_NU = AllRows(config_.up_size());
  }

  // Adds activations that take no matrix products to compute.
  void AddWithoutProducts(BlockActivations* layer) {
    AddNormOutput(&layer->input_norm);
    if (config_.has_mlp_norm()) AddNormOutput(&layer->post_attention_norm);
    layer->inner_NI = AllRows(config_.intermediate_size);
  }

  void AddNormOutput(NormActivations* norm) {
    norm->out_RC = OwnRows();
    if (config_.norm == ops::NormKind::kLayerNorm) norm->mean_R = NewVector(accumulation_, rows_);
    norm->rstd_R = NewVector(accumulation_, rows_);
  }

  ChunkScratch Scratch() {
    ChunkScratch scratch;
    if (options_.tensor.size > 1) {
      scratch.block.gathered_NC = AllRows(config_.hidden_size);
      scratch.block.d_gathered_NC = AllRows(config_.hidden_size);
      scratch.block.partial_NC = AllRows(config_.hidden_size);
    }
    if (config_.parallel_block) {
      // Forward uses attention_out, backward d_gathered, so they can share memory.
      scratch.block.attention_out_NC =
          options_.tensor.size > 1 ? scratch.block.d_gathered_NC : AllRows(config_.hidden_size);
    }
    if (!options_.generates) AddBackward(&scratch.block);
    scratch.delta_RC = OwnRows();
    if (options_.range.has_head) {
      scratch.final_norm.x_RC = OwnRows();
      AddNormOutput(&scratch.final_norm);
      scratch.logits_NV = options_.generates
                              ? NewMatrix(std::min(tokens_, ops::kFewRows), config_.vocab_size)
                              : AllRows(config_.vocab_size);
      if (options_.tensor.size > 1) {
        scratch.statistics_3N = NewVector(accumulation_, 3 * tokens_);
        scratch.all_statistics_P3N = NewVector(accumulation_, options_.tensor.size * 3 * tokens_);
      }
    }
    return scratch;
  }

  void AddBackward(BlockScratch* block) {
    block->d_inner_NI = AllRows(config_.intermediate_size);
    block->d_up_NU = AllRows(config_.up_size());
    block->d_norm_RC = OwnRows();
    block->d_attention_NA = AllRows(config_.num_heads * config_.head_dim);
    block->d_qkv_NQ = AllRows(config_.qkv_size());
    if (config_.qk_norm) block->d_qk_NS = AllRows(config_.qk_size());
  }

  const ChunkOptions& options_;
  const ModelConfig config_;  // this tensor rank's part
  const DType accumulation_;
  const int64_t tokens_;
  const int64_t rows_;  // this tensor rank's own
  Arena* const arena_;
  size_t bytes_ = 0;
  BlockActivations shared_;  // shared by all layers
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
