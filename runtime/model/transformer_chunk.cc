#include "runtime/model/transformer_chunk.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::model {
namespace {

constexpr char kTokenEmbedding[] = "model.embed_tokens.weight";

// `index` may lie outside of `space`: views are bound before their final position is known.
void* Element(const Vector& space, int64_t index) {
  const auto bytes = static_cast<intptr_t>(SizeOf(space.dtype));
  return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(space.data) + index * bytes);
}

// Views of the parameters by name in the flat spaces.
class ParameterBinder {
 public:
  ParameterBinder(const ChunkLayout& layout, const ChunkParameters& parameters)
      : layout_(layout), parameters_(parameters) {}

  // Whether this tensor rank adds values that must count once in the sum over ranks.
  bool adds_to_sum() const { return layout_.place().index == 0; }

  // Returns an empty view if the chunk has no such parameter.
  Vector VectorIn(const Vector& space, absl::string_view name) const {
    const int index = layout_.Find(name);
    if (index < 0 || !space) return {};
    const Parameter& parameter = layout_.parameters()[index];
    return {Element(space, parameter.offset), space.dtype, parameter.size};
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
  // Binds a layer whose inputs are cut over the tensor ranks. Every rank computes the bias's
  // gradient from its own rows.
  LinearParameters PartialLinear(absl::string_view module) const {
    LinearParameters linear = Linear(module);
    if (!adds_to_sum()) linear.bias = {};
    return linear;
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
    return {.window = 0,
            .input_norm = Norm(prefix + "input_norm"),
            .qkv = Linear(prefix + "attn.qkv"),
            .q_norm = Norm(prefix + "attn.q_norm"),
            .k_norm = Norm(prefix + "attn.k_norm"),
            .attention_out = PartialLinear(prefix + "attn.out"),
            .post_attention_norm = Norm(prefix + "post_attention_norm"),
            .up = Linear(prefix + "mlp.up"),
            .down = PartialLinear(prefix + "mlp.down")};
  }

 private:
  const ChunkLayout& layout_;
  const ChunkParameters& parameters_;
};

// Whether a call adds to this parameter's gradient before the call that completes its layer's
// gradients.
bool IsMadeEarly(const ChunkOptions& options, const Parameter& parameter) {
  const bool of_layer = absl::StartsWith(parameter.name, "model.layers.");
  const bool of_embedding = absl::StartsWith(parameter.name, "model.embed");
  if (options.split_backward) {
    const bool is_matrix = parameter.global_shape.size() == 2;
    return of_embedding || (of_layer && !is_matrix);
  }
  return options.range.has_head && options.config.tied && parameter.name == kTokenEmbedding;
}

// Returns the rows of a tensor rank's part of the vocabulary, without its padding.
int64_t RowsOfVocabulary(const ChunkOptions& options) {
  const int64_t vocab_size = options.config.vocab_size;
  const int64_t rows = VocabularyRows(vocab_size, options.tensor.size);
  return std::min(rows, vocab_size - options.tensor.index * rows);
}

absl::Status CheckTensorSize(const ChunkOptions& options) {
  const int size = options.tensor.size;
  if (CutsEvenly(options.config, size) && options.seq % size == 0) return absl::OkStatus();
  const ModelConfig& config = options.config;
  return absl::InvalidArgumentError(
      absl::StrCat(size, " tensor ranks share ", config.num_heads, " heads, ", config.num_kv_heads,
                   " key/value heads, an MLP ", config.intermediate_size, " wide, a vocabulary of ",
                   config.vocab_size, " and sequences of ", options.seq,
                   ": expected multiples of their number, since they have equal parts, and a "
                   "vocabulary that gives rows to each"));
}

absl::Status CheckOptions(const ChunkOptions& options) {
  const ModelConfig& config = options.config;
  MEGASCALE_CHECK(options.micro_batch >= 1 && options.seq >= 1 && options.num_slots >= 1);
  MEGASCALE_CHECK(options.range.num_layers >= 1);
  if (config.position == PositionKind::kLearned && options.seq > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sequence length is ", options.seq,
                     ": expected at most model.max_position_embeddings, which is ",
                     config.max_positions, ", since positions are learned"));
  }
  if (options.split_backward && options.recompute != Recompute::kNone) {
    return absl::InvalidArgumentError(
        "activations are recomputed and backward is split: expected one of the two, since the part "
        "that is left for later reads what recomputation does not keep");
  }
  return CheckTensorSize(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerChunk>> TransformerChunk::Create(
    const ChunkOptions& options, ops::Ops* ops, const ChunkParameters& parameters,
    TensorGroup* group, tensor::AllocateArena allocate) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(tensor::Arena memory, allocate(ChunkMemoryBytes(options)));
  return CreateIn(std::move(memory), options, ops, parameters, group);
}

absl::StatusOr<std::unique_ptr<TransformerChunk>> TransformerChunk::CreateIn(
    tensor::Arena memory, const ChunkOptions& options, ops::Ops* ops,
    const ChunkParameters& parameters, TensorGroup* group) {
  RETURN_IF_ERROR(CheckOptions(options));
  MEGASCALE_CHECK(options.compute == ops->compute());
  MEGASCALE_CHECK((group == nullptr) == (options.tensor.size == 1));
  if (group != nullptr) {
    MEGASCALE_CHECK(group->place().size == options.tensor.size);
    MEGASCALE_CHECK(group->place().index == options.tensor.index);
  }
  auto chunk = absl::WrapUnique(new TransformerChunk(options, ops, group));
  chunk->BindParameters(parameters);
  chunk->arena_ = std::move(memory);
  chunk->memory_ = AllocateChunkMemory(options, &chunk->arena_);
  return chunk;
}

TransformerChunk::TransformerChunk(const ChunkOptions& options, ops::Ops* ops, TensorGroup* group)
    : options_(options),
      part_(PartOfTensorRank(options.config, options.tensor.size)),
      ops_(*ops),
      rows_(group),
      vocabulary_{.first_token = options.tensor.index * part_.vocab_size,
                  .vocab_size = options.config.vocab_size},
      block_(&part_, ops, rows_, options.generates),
      slot_states_(options.num_slots, SlotState::kFree),
      layers_left_(options.num_slots),
      layout_(options.config, options.range, options.tensor) {}

void TransformerChunk::BindParameters(const ChunkParameters& parameters) {
  const ChunkRange& range = options_.range;
  MEGASCALE_CHECK(parameters.weights.dtype == options_.compute);
  MEGASCALE_CHECK(parameters.weights.size >= layout_.num_elements());
  can_train_ = static_cast<bool>(parameters.gradients);
  gradients_ = parameters.gradients;
  MEGASCALE_CHECK(!can_train_ || gradients_.dtype == AccumulationType(options_.compute));
  const ParameterBinder binder(layout_, parameters);
  token_weight_VC_ = binder.MatrixIn(parameters.weights, kTokenEmbedding);
  d_token_weight_VC_ = binder.MatrixIn(parameters.gradients, kTokenEmbedding);
  if (binder.adds_to_sum()) {
    position_weight_TC_ = binder.MatrixIn(parameters.weights, "model.embed_positions.weight");
    d_position_weight_TC_ = binder.MatrixIn(parameters.gradients, "model.embed_positions.weight");
  }
  for (int i = 0; i < range.num_layers; ++i) {
    layers_.push_back(binder.Block(range.first_layer + i));
    layers_.back().window = options_.config.WindowOf(range.first_layer + i);
  }
  if (range.has_head) {
    final_norm_ = binder.Norm("model.norm");
    head_ = binder.Linear(options_.config.tied ? "model.embed_tokens" : "lm_head");
  }
  // Padding is no row of these: no token has it, no logit comes from it, no gradient reaches it.
  const int64_t rows = RowsOfVocabulary(options_);
  for (Matrix* matrix : {&token_weight_VC_, &d_token_weight_VC_, &head_.weight, &head_.d_weight}) {
    if (*matrix) matrix->rows = rows;
  }
  BindEarlyGradients(parameters.early_gradients);
  if (BorrowsEmbedding(options_.config, range)) BindBorrowedHead(parameters);
}

// After BindEarlyGradients: unlike the gradients of parameters, this one never moves.
void TransformerChunk::BindBorrowedHead(const ChunkParameters& parameters) {
  const auto view = [&](const Vector& space) -> Matrix {
    if (!space) return {};
    MEGASCALE_CHECK(space.size == EmbeddingElements(options_.config, options_.tensor.size));
    const int64_t hidden = options_.config.hidden_size;
    return {space.data, space.dtype, RowsOfVocabulary(options_), hidden, hidden};
  };
  head_.weight = view(parameters.head_weight);
  head_.d_weight = view(parameters.head_gradient);
  MEGASCALE_CHECK(head_.weight && head_.weight.dtype == options_.compute);
  MEGASCALE_CHECK(!can_train_ || (head_.d_weight && head_.d_weight.dtype == gradients_.dtype));
}

void TransformerChunk::BindEarlyGradients(const Vector& space) {
  MEGASCALE_CHECK(!space || space.size == EarlyElements(options_));
  MEGASCALE_CHECK(!space || space.dtype == gradients_.dtype);
  int64_t begin = 0;
  for (const Parameter& parameter : layout_.parameters()) {
    if (!space || !IsMadeEarly(options_, parameter)) continue;
    early_gradients_.push_back(
        {{Element(space, begin), space.dtype, parameter.size}, parameter.offset});
    begin += parameter.size;
  }
  ForEachGradient([this](auto* view) {
    const auto early = std::find_if(early_gradients_.begin(), early_gradients_.end(),
                                    [&](const EarlyGradient& gradient) {
                                      return view->data == Element(gradients_, gradient.offset);
                                    });
    if (early == early_gradients_.end()) {
      late_gradients_.push_back(&view->data);
    } else {
      view->data = early->sum.data;
    }
  });
}

template <typename Visit>
void TransformerChunk::ForEachGradient(const Visit& visit) {
  const auto visit_those = [&](auto*... views) {
    const auto visit_one = [&](auto* view) {
      if (*view) visit(view);
    };
    (visit_one(views), ...);
  };
  visit_those(&d_token_weight_VC_, &d_position_weight_TC_, &final_norm_.d_weight,
              &final_norm_.d_bias, &head_.d_weight, &head_.d_bias);
  for (BlockParameters& layer : layers_) {
    for (NormParameters* norm :
         {&layer.input_norm, &layer.q_norm, &layer.k_norm, &layer.post_attention_norm}) {
      visit_those(&norm->d_weight, &norm->d_bias);
    }
    for (LinearParameters* linear : {&layer.qkv, &layer.attention_out, &layer.up, &layer.down}) {
      visit_those(&linear->d_weight, &linear->d_bias);
    }
  }
}

void TransformerChunk::AddGradientsTo(const Vector& gradients, int64_t first) {
  MEGASCALE_CHECK(can_train_);
  MEGASCALE_CHECK(gradients.dtype == gradients_.dtype);
  const auto address_of_0 = [](const Vector& part, int64_t first_of_part) {
    return reinterpret_cast<intptr_t>(Element(part, -first_of_part));
  };
  const intptr_t moved = address_of_0(gradients, first) - address_of_0(gradients_, first_gradient_);
  for (void** view : late_gradients_) {
    *view = reinterpret_cast<void*>(reinterpret_cast<intptr_t>(*view) + moved);
  }
  gradients_ = gradients;
  first_gradient_ = first;
}

void TransformerChunk::CheckGradients(int64_t begin, int64_t end) const {
  MEGASCALE_CHECK(first_gradient_ <= begin);
  MEGASCALE_CHECK(end <= first_gradient_ + gradients_.size);
}

void TransformerChunk::AddEarlyGradients(int first, int end) {
  for (const EarlyGradient& early : early_gradients_) {
    if (early.offset < layout_.FirstElement(first)) continue;
    if (early.offset >= layout_.FirstElement(end)) continue;
    const Vector whole = {Element(gradients_, early.offset - first_gradient_), early.sum.dtype,
                          early.sum.size};
    ops_.AddScaled(1.0, early.sum, whole);
    ops_.FillZero(early.sum);
  }
}

int64_t TransformerChunk::EarlyElements(const ChunkOptions& options) {
  const ChunkLayout layout(options.config, options.range, options.tensor);
  int64_t elements = 0;
  for (const Parameter& parameter : layout.parameters()) {
    if (IsMadeEarly(options, parameter)) elements += parameter.size;
  }
  return elements;
}

int64_t TransformerChunk::ActivationBytes(const ChunkOptions& options) {
  return static_cast<int64_t>(ChunkMemoryBytes(options));
}

const SlotMemory& TransformerChunk::SlotAt(int slot) const {
  MEGASCALE_CHECK(slot >= 0 && slot < options_.num_slots);
  return memory_.slots[slot];
}

BatchShape TransformerChunk::ShapeOf(const SlotMemory& slot, int64_t batch) const {
  BatchShape shape{batch, options_.seq};
  if (options_.within_documents) {
    shape.document_begins_N = First(slot.document_begins_N, shape.tokens());
  }
  return shape;
}

void TransformerChunk::Forward(int slot, const ChunkLoss& loss) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(can_train_);
  MEGASCALE_CHECK(slot_states_[slot] == SlotState::kFree);
  slot_states_[slot] = SlotState::kBackward;
  layers_left_[slot] = options_.range.num_layers;
  const Residual residual =
      ForwardLayers(memory, memory.tokens_N, ShapeOf(memory, options_.micro_batch));
  if (!options_.range.has_head) {
    ops_.Add(residual.base_RC, residual.delta_RC, memory.output_RC);
    return;
  }
  MEGASCALE_CHECK(static_cast<bool>(loss.sum));
  CheckGradients(layout_.FirstElement(options_.range.num_layers), layout_.num_elements());
  const Matrix logits_NV = ForwardHead(residual);
  CrossEntropy({.logits = logits_NV,
                .targets = memory.targets_N,
                .gradient_scale = loss.gradient_scale,
                .backward = true,
                .loss_sum = loss.sum});
  LossBackward(memory, logits_NV);
}

void TransformerChunk::Evaluate(int slot, int64_t batch, int64_t counted, const Vector& loss_sum) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(slot_states_[slot] == SlotState::kFree);
  MEGASCALE_CHECK(batch >= 1 && batch <= options_.micro_batch);
  MEGASCALE_CHECK(counted >= 0 && counted <= batch);
  const BatchShape shape = ShapeOf(memory, batch);
  const Residual residual = ForwardLayers(memory, memory.tokens_N, shape);
  if (!options_.range.has_head) {
    ops_.Add(residual.base_RC, residual.delta_RC, Rows(memory.output_RC, residual.base_RC.rows));
    return;
  }
  if (counted == 0) return;
  const int64_t tokens = counted * options_.seq;
  CrossEntropy({.logits = Rows(ForwardHead(residual), tokens),
                .targets = First(memory.targets_N, tokens),
                .backward = false,
                .loss_sum = loss_sum});
}

Vector TransformerChunk::Logits(const Vector& tokens) {
  MEGASCALE_CHECK(options_.range.has_embedding && options_.range.has_head);
  MEGASCALE_CHECK(options_.tensor.size == 1);
  MEGASCALE_CHECK(slot_states_[0] == SlotState::kFree);
  MEGASCALE_CHECK(tokens.size >= 1 && tokens.size <= options_.seq);
  const Residual all = ForwardLayers(SlotAt(0), tokens, {1, tokens.size});
  const Residual last = {RowsFrom(all.base_RC, tokens.size - 1, 1),
                         RowsFrom(all.delta_RC, tokens.size - 1, 1)};
  const Matrix logits_1V = ForwardHead(last);
  return {logits_1V.data, logits_1V.dtype, logits_1V.cols};
}

Matrix TransformerChunk::Continue(const Vector& tokens_N, const Vector& places_N,
                                  const KeyValueCache& cache, int64_t num_logits) {
  MEGASCALE_CHECK(options_.generates && options_.range.has_embedding && options_.range.has_head);
  MEGASCALE_CHECK(places_N.size == tokens_N.size && cache.keys.size() == layers_.size());
  MEGASCALE_CHECK(tokens_N.size >= 1 && tokens_N.size <= options_.micro_batch * options_.seq);
  MEGASCALE_CHECK(num_logits >= 0 && num_logits <= std::min(tokens_N.size, ops::kFewRows));
  const BatchShape shape = {
      .batch = 1, .seq = tokens_N.size, .places_N = places_N, .capacity = cache.capacity};
  const Residual all = ForwardLayers(SlotAt(0), tokens_N, shape, &cache);
  if (num_logits == 0) return {};
  const int64_t first = tokens_N.size - num_logits;
  return ForwardHead(
      {RowsFrom(all.base_RC, first, num_logits), RowsFrom(all.delta_RC, first, num_logits)});
}

Residual TransformerChunk::ForwardLayers(const SlotMemory& slot, const Vector& tokens_N,
                                         BatchShape shape, const KeyValueCache* cache) {
  Residual residual;
  residual.base_RC = Rows(slot.input_RC, rows_.NumOwn(shape.tokens()));
  if (options_.range.has_embedding) {
    Embed(First(tokens_N, shape.tokens()), shape, residual.base_RC);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    BlockActivations layer = slot.layers[i];
    if (cache != nullptr) layer.cached_k = cache->keys[i], layer.cached_v = cache->values[i];
    residual = block_.Forward(layers_[i], layer, memory_.scratch.block, shape, residual,
                              memory_.scratch.delta_RC);
  }
  return residual;
}

void TransformerChunk::Embed(const Vector& tokens_N, BatchShape shape, const Matrix& out_RC) {
  const Matrix partial_NC = rows_.All(out_RC, memory_.scratch.block.partial_NC);
  ops_.Embedding({.seq = shape.places_N ? shape.capacity : shape.seq,
                  .tokens = tokens_N,
                  .token_weight = token_weight_VC_,
                  .position_weight = position_weight_TC_,
                  .out = partial_NC,
                  .vocabulary = vocabulary_,
                  .places = shape.places_N,
                  .document_begins = shape.document_begins_N});
  rows_.Wait(rows_.AddUp(partial_NC, out_RC, [](int64_t, int64_t) {}));
}

Matrix TransformerChunk::ForwardHead(Residual residual) {
  const ChunkScratch& scratch = memory_.scratch;
  block_.Norm(final_norm_, scratch.final_norm, residual);
  const Matrix norm_RC = Rows(scratch.final_norm.out_RC, residual.base_RC.rows);
  const GatheredRows norm = rows_.Gather(norm_RC, scratch.block.gathered_NC);
  Matrix logits_NV = Rows(scratch.logits_NV, norm.all_NC.rows);
  logits_NV.cols = head_.weight.rows;
  block_.Linear(head_, norm, logits_NV);
  return logits_NV;
}

void TransformerChunk::CrossEntropy(ops::CrossEntropyArgs args) {
  if (options_.tensor.size > 1) {
    const int64_t size = 3 * args.targets.size;
    const Vector mine = First(memory_.scratch.statistics_3N, size);
    const Vector all = First(memory_.scratch.all_statistics_P3N, options_.tensor.size * size);
    ops_.LogitStatistics({.logits = args.logits,
                          .targets = args.targets,
                          .vocabulary = vocabulary_,
                          .statistics = mine});
    rows_.GatherVectors(mine, all);
    args.vocabulary = vocabulary_;
    args.statistics = all;
  }
  ops_.CrossEntropy(args);
}

void TransformerChunk::LossBackward(const SlotMemory& slot, const Matrix& d_logits_NV) {
  const ChunkScratch& scratch = memory_.scratch;
  // ForwardHead has just gathered these rows.
  const Matrix norm_NC = rows_.All(scratch.final_norm.out_RC, scratch.block.gathered_NC);
  const Matrix d_norm_NC = rows_.All(scratch.block.d_norm_RC, scratch.block.partial_NC);
  const auto make = [&](int64_t first, int64_t rows) {
    block_.InputGradient(head_, RowsFrom(d_logits_NV, first, rows),
                         RowsFrom(d_norm_NC, first, rows));
  };
  const SumOfRows sum = rows_.AddUp(d_norm_NC, scratch.block.d_norm_RC, make);
  block_.AddWeightGradient(head_, norm_NC, d_logits_NV);
  rows_.Wait(sum);
  ops_.FillZero(Flat(slot.gradient_RC));
  block_.NormBackward(final_norm_, scratch.final_norm, scratch.block.d_norm_RC, slot.gradient_RC);
}

int TransformerChunk::TakeLayers(int slot, int down_to) {
  MEGASCALE_CHECK(down_to >= 0 && down_to < layers_left_[slot]);
  CheckGradients(layout_.FirstElement(down_to), layout_.FirstElement(layers_left_[slot]));
  return std::exchange(layers_left_[slot], down_to);
}

void TransformerChunk::Backward(int slot, int down_to) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(slot_states_[slot] == SlotState::kBackward);
  const BatchShape shape = ShapeOf(memory, options_.micro_batch);
  const int end = TakeLayers(slot, down_to);
  for (int i = end; i-- > down_to;) {
    const BlockActivations& layer = memory.layers[i];
    if (options_.recompute != Recompute::kNone) {
      block_.ForwardAgain(options_.recompute, layers_[i], layer, memory_.scratch.block, shape,
                          memory_.scratch.delta_RC);
    }
    block_.Backward(layers_[i], layer, memory_.scratch.block, shape, memory.gradient_RC);
  }
  if (down_to == 0) {
    EmbeddingBackward(memory);
    slot_states_[slot] = SlotState::kFree;
  }
  AddEarlyGradients(down_to, end);
}

// Until BackwardWeights, the gradient of a layer's output is stored over the next layer's input:
// when the gradient is complete, that input is no longer needed. The last layer's gradient goes
// over the first layer's input; until that is free it waits in forward's scratch memory.
void TransformerChunk::BackwardInput(int slot) {
  MEGASCALE_CHECK(options_.split_backward);
  MEGASCALE_CHECK(slot >= 0 && slot < options_.num_slots);
  SlotMemory& memory = memory_.slots[slot];
  ChunkScratch& scratch = memory_.scratch;
  MEGASCALE_CHECK(slot_states_[slot] == SlotState::kBackward);
  MEGASCALE_CHECK(layers_left_[slot] == options_.range.num_layers);
  slot_states_[slot] = SlotState::kBackwardWeights;
  const BatchShape shape = ShapeOf(memory, options_.micro_batch);
  ops_.Cast(Flat(memory.gradient_RC), Flat(scratch.delta_RC));
  for (size_t i = layers_.size(); i-- > 0;) {
    BlockActivations& layer = memory.layers[i];
    block_.BackwardInput(layers_[i], shape, &layer, &scratch.block, memory.gradient_RC);
    ops_.Cast(Flat(i > 0 ? memory.gradient_RC : scratch.delta_RC), Flat(layer.input_norm.x_RC));
  }
  EmbeddingBackward(memory);
}

void TransformerChunk::BackwardWeights(int slot, int down_to) {
  const SlotMemory& memory = SlotAt(slot);
  MEGASCALE_CHECK(slot_states_[slot] == SlotState::kBackwardWeights);
  const int end = TakeLayers(slot, down_to);
  for (int i = end; i-- > down_to;) {
    const BlockActivations& next = memory.layers[(i + 1) % layers_.size()];
    block_.BackwardWeights(layers_[i], memory.layers[i], memory_.scratch.block,
                           next.input_norm.x_RC);
  }
  if (down_to == 0) slot_states_[slot] = SlotState::kFree;
  AddEarlyGradients(down_to, end);
}

void TransformerChunk::EmbeddingBackward(const SlotMemory& slot) {
  if (!options_.range.has_embedding) return;
  ops_.EmbeddingBackward(
      {.seq = options_.seq,
       .tokens = slot.tokens_N,
       .d_out = rows_.Wait(rows_.Gather(slot.gradient_RC, memory_.scratch.block.d_gathered_NC)),
       .d_token_weight = d_token_weight_VC_,
       .d_position_weight = d_position_weight_TC_,
       .vocabulary = vocabulary_,
       .document_begins = slot.document_begins_N});
}

}  // namespace megascale::model
