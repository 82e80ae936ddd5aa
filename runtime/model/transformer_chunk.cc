#include "runtime/model/transformer_chunk.h"

#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::model {
namespace {

// Views of the parameters by name in the flat spaces.
class ParameterBinder {
 public:
  ParameterBinder(const ChunkLayout& layout, const ChunkParameters& parameters)
      : layout_(layout), parameters_(parameters) {}

  // None where the chunk has no such parameter.
  Vector VectorIn(const Vector& space, absl::string_view name) const {
    const int index = layout_.Find(name);
    if (index < 0 || !space) return {};
    const Parameter& parameter = layout_.parameters()[index];
    const int64_t element_bytes = static_cast<int64_t>(SizeOf(space.dtype));
    return {static_cast<char*>(space.data) + parameter.offset * element_bytes, space.dtype,
            parameter.size};
  }
  Matrix MatrixIn(const Vector& space, absl::string_view name) const {
    const Vector flat = VectorIn(space, name);
    if (!flat) return {};
    const std::vector<int64_t>& shape = layout_.parameters()[layout_.Find(name)].shape;
    MEGASCALE_CHECK(shape.size() == 2);
    return {flat.data, flat.dtype, shape[0], shape[1], shape[1]};
  }
  LinearParameters Linear(absl::string_view module) const {
    const std::string weight = absl::StrCat(module, ".weight");
    const std::string bias = absl::StrCat(module, ".bias");
    return {.weight = MatrixIn(parameters_.weights, weight),
            .bias = VectorIn(parameters_.weights, bias),
            .d_weight = MatrixIn(parameters_.gradients, weight),
            .d_bias = VectorIn(parameters_.gradients, bias)};
  }
  NormParameters Norm(absl::string_view module) const {
    const std::string weight = absl::StrCat(module, ".weight");
    const std::string bias = absl::StrCat(module, ".bias");
    return {.weight = VectorIn(parameters_.weights, weight),
            .bias = VectorIn(parameters_.weights, bias),
            .d_weight = VectorIn(parameters_.gradients, weight),
            .d_bias = VectorIn(parameters_.gradients, bias)};
  }
  BlockParameters Block(int layer) const {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    return {.input_norm = Norm(prefix + "input_norm"),
            .qkv = Linear(prefix + "attn.qkv"),
            .attention_out = Linear(prefix + "attn.out"),
            .post_attention_norm = Norm(prefix + "post_attention_norm"),
            .up = Linear(prefix + "mlp.up"),
            .down = Linear(prefix + "mlp.down")};
  }

 private:
  const ChunkLayout& layout_;
  const ChunkParameters& parameters_;
};

// Rows [first, first + rows).
Matrix RowsFrom(const Matrix& matrix, int64_t first, int64_t rows) {
  MEGASCALE_CHECK(first + rows <= matrix.rows);
  Matrix view = matrix;
  view.data = static_cast<char*>(matrix.data) +
              first * matrix.stride * static_cast<int64_t>(SizeOf(matrix.dtype));
  view.rows = rows;
  return view;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerChunk>> TransformerChunk::Create(
    const ChunkOptions& options, ops::Ops* ops, const ChunkParameters& parameters) {
  const ModelConfig& config = options.config;
  MEGASCALE_CHECK(options.compute == ops->compute());
  MEGASCALE_CHECK(options.micro_batch >= 1 && options.seq >= 1 && options.num_slots >= 1);
  MEGASCALE_CHECK(options.range.num_layers >= 1);
  if (config.position == PositionKind::kLearned && options.seq > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sequence length is ", options.seq,
                     ": expected at most model.max_position_embeddings, which is ",
                     config.max_positions, ", since positions are learned"));
  }
  auto chunk = absl::WrapUnique(new TransformerChunk(options, ops));
  chunk->BindParameters(parameters);
  ASSIGN_OR_RETURN(chunk->arena_, tensor::Arena::Create(ChunkMemoryBytes(options)));
  chunk->memory_ = AllocateChunkMemory(options, &chunk->arena_);
  return chunk;
}

TransformerChunk::TransformerChunk(const ChunkOptions& options, ops::Ops* ops)
    : options_(options),
      ops_(*ops),
      block_(&options_.config, ops),
      backward_outstanding_(options.num_slots, false) {}

void TransformerChunk::BindParameters(const ChunkParameters& parameters) {
  const ChunkRange& range = options_.range;
  const ChunkLayout layout(options_.config, range);
  MEGASCALE_CHECK(parameters.weights.dtype == options_.compute);
  MEGASCALE_CHECK(parameters.weights.size >= layout.num_elements());
  can_train_ = static_cast<bool>(parameters.gradients);
  if (can_train_) {
    MEGASCALE_CHECK(parameters.gradients.dtype == AccumulationType(options_.compute));
    MEGASCALE_CHECK(parameters.gradients.size >= layout.num_elements());
  }
  const ParameterBinder binder(layout, parameters);
  token_weight_VC_ = binder.MatrixIn(parameters.weights, "model.embed_tokens.weight");
  d_token_weight_VC_ = binder.MatrixIn(parameters.gradients, "model.embed_tokens.weight");
  position_weight_PC_ = binder.MatrixIn(parameters.weights, "model.embed_positions.weight");
  d_position_weight_PC_ = binder.MatrixIn(parameters.gradients, "model.embed_positions.weight");
  for (int i = 0; i < range.num_layers; ++i) {
    layers_.push_back(binder.Block(range.first_layer + i));
  }
  if (!range.has_head) return;
  final_norm_ = binder.Norm("model.norm");
  head_ = binder.Linear(options_.config.tied ? "model.embed_tokens" : "lm_head");
}

int64_t TransformerChunk::ActivationBytes(const ChunkOptions& options) {
  return static_cast<int64_t>(ChunkMemoryBytes(options));
}

int64_t TransformerChunk::ParameterBytes(const ChunkOptions& options) {
  const int64_t element_bytes =
      static_cast<int64_t>(SizeOf(options.compute) + SizeOf(AccumulationType(options.compute)));
  return ChunkLayout(options.config, options.range).num_elements() * element_bytes;
}

const SlotMemory& TransformerChunk::SlotAt(int slot) const {
  MEGASCALE_CHECK(slot >= 0 && slot < options_.num_slots);
  return memory_.slots[slot];
}

void TransformerChunk::Forward(int slot, const ChunkLoss& loss) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(can_train_);
  MEGASCALE_CHECK(!backward_outstanding_[slot]);
  backward_outstanding_[slot] = true;
  const Residual residual =
      ForwardLayers(memory, memory.tokens_N, {options_.micro_batch, options_.seq});
  if (!options_.range.has_head) {
    ops_.Add(residual.base_NC, residual.delta_NC, memory.output_NC);
    return;
  }
  MEGASCALE_CHECK(loss.sum != nullptr);
  const Matrix logits_NV = ForwardHead(residual);
  ops_.CrossEntropy({.logits = logits_NV,
                     .targets = memory.targets_N,
                     .gradient_scale = loss.gradient_scale,
                     .backward = true,
                     .loss_sum = loss.sum});
  LossBackward(memory, logits_NV);
}

void TransformerChunk::Evaluate(int slot, int64_t batch, double* loss_sum) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(!backward_outstanding_[slot]);
  MEGASCALE_CHECK(batch >= 1 && batch <= options_.micro_batch);
  const BatchShape shape{batch, options_.seq};
  const Residual residual = ForwardLayers(memory, memory.tokens_N, shape);
  if (!options_.range.has_head) {
    ops_.Add(residual.base_NC, residual.delta_NC, Rows(memory.output_NC, shape.tokens()));
    return;
  }
  Vector targets_N = memory.targets_N;
  targets_N.size = shape.tokens();
  ops_.CrossEntropy({.logits = ForwardHead(residual),
                     .targets = targets_N,
                     .backward = false,
                     .loss_sum = loss_sum});
}

Vector TransformerChunk::Logits(const Vector& tokens) {
  MEGASCALE_CHECK(options_.range.has_embedding && options_.range.has_head);
  MEGASCALE_CHECK(!backward_outstanding_[0]);
  MEGASCALE_CHECK(tokens.size >= 1 && tokens.size <= options_.seq);
  const Residual all = ForwardLayers(SlotAt(0), tokens, {1, tokens.size});
  const Residual last = {RowsFrom(all.base_NC, tokens.size - 1, 1),
                         RowsFrom(all.delta_NC, tokens.size - 1, 1)};
  const Matrix logits_1V = ForwardHead(last);
  return {logits_1V.data, logits_1V.dtype, logits_1V.cols};
}

Residual TransformerChunk::ForwardLayers(const SlotMemory& slot, const Vector& tokens_N,
                                         BatchShape shape) {
  Residual residual;
  residual.base_NC = Rows(slot.input_NC, shape.tokens());
  if (options_.range.has_embedding) {
    Vector tokens = tokens_N;
    tokens.size = shape.tokens();
    ops_.Embedding({.seq = shape.seq,
                    .tokens = tokens,
                    .token_weight = token_weight_VC_,
                    .position_weight = position_weight_PC_,
                    .out = residual.base_NC});
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    residual = block_.Forward(layers_[i], slot.layers[i], memory_.scratch.block, shape, residual,
                              memory_.scratch.delta_NC);
  }
  return residual;
}

Matrix TransformerChunk::ForwardHead(Residual residual) {
  const int64_t rows = residual.base_NC.rows;
  const NormActivations& norm = memory_.scratch.final_norm;
  block_.Norm(final_norm_, norm, residual);
  const Matrix logits_NV = Rows(memory_.scratch.logits_NV, rows);
  block_.Linear(head_, Rows(norm.out_NC, rows), logits_NV);
  return logits_NV;
}

void TransformerChunk::LossBackward(const SlotMemory& slot, const Matrix& d_logits_NV) {
  const ChunkScratch& scratch = memory_.scratch;
  block_.LinearBackward(head_, scratch.final_norm.out_NC, d_logits_NV, scratch.block.d_norm_NC);
  ops_.FillZero({slot.gradient_NC.data, slot.gradient_NC.dtype,
                 slot.gradient_NC.rows * slot.gradient_NC.stride});
  block_.NormBackward(final_norm_, scratch.final_norm, scratch.block.d_norm_NC, slot.gradient_NC);
}

void TransformerChunk::Backward(int slot) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(backward_outstanding_[slot]);
  backward_outstanding_[slot] = false;
  const BatchShape shape{options_.micro_batch, options_.seq};
  for (size_t i = layers_.size(); i-- > 0;) {
    block_.Backward(layers_[i], memory.layers[i], memory_.scratch.block, shape, memory.gradient_NC);
  }
  if (!options_.range.has_embedding) return;
  ops_.EmbeddingBackward({.seq = shape.seq,
                          .tokens = memory.tokens_N,
                          .d_out = memory.gradient_NC,
                          .d_token_weight = d_token_weight_VC_,
                          .d_position_weight = d_position_weight_PC_});
}

}  // namespace megascale::model
