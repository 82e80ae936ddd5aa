#include "runtime/model/chunk_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::model {
namespace {

constexpr int64_t kShardAlignment =
    64;  // elements; a cache line of bf16 has 32, a vector of fp32 16

// Rounds up to a size that divides into `num_shards` aligned equal parts.
int64_t Padded(int64_t elements, int num_shards) {
  MEGASCALE_CHECK(num_shards >= 1);
  const int64_t unit = kShardAlignment * num_shards;
  return (elements + unit - 1) / unit * unit;
}

// Returns the mean of min(t + 1, window) over queries t = 0 .. seq-1.
double MeanVisibleKeys(int64_t seq, int64_t window) {
  const double full = window == 0 ? seq : std::min(seq, window);
  const double ramp = full * (full + 1) / 2;  // of the queries that see up to `full` keys
  return (ramp + (seq - full) * full) / seq;
}

// Returns the number of layers that have the model's window.
int64_t CountWindowed(const ModelConfig& config, const ChunkRange& range) {
  if (config.full_layers.empty()) return range.num_layers;
  const auto first = config.full_layers.begin() + range.first_layer;
  return std::count(first, first + range.num_layers, false);
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  return elements;
}

}  // namespace

TokenFlops FlopsPerToken(const ModelConfig& config, const ChunkRange& range, int64_t seq) {
  const double hidden = static_cast<double>(config.hidden_size);
  const double attention_width = static_cast<double>(config.num_heads * config.head_dim);
  const double layer_elements =
      hidden * (static_cast<double>(config.qkv_size()) + attention_width +
                static_cast<double>(config.up_size() + config.intermediate_size));
  const double head = range.has_head ? 2 * hidden * static_cast<double>(config.vocab_size) : 0;
  TokenFlops flops;
  flops.weights = range.num_layers * 2 * layer_elements + head;
  const double windowed = static_cast<double>(CountWindowed(config, range));
  flops.forward = flops.weights +
                  windowed * 4 * attention_width * MeanVisibleKeys(seq, config.window) +
                  (range.num_layers - windowed) * 4 * attention_width * MeanVisibleKeys(seq, 0);
  return flops;
}

absl::StatusOr<ChunkRange> MakeChunkRange(const ModelConfig& config, int num_chunks,
                                          int chunk_index) {
  MEGASCALE_CHECK(num_chunks >= 1);
  MEGASCALE_CHECK(chunk_index >= 0 && chunk_index < num_chunks);
  if (config.num_layers < num_chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.num_hidden_layers is ", config.num_layers,
                     ": expected at least one layer for each of ", num_chunks,
                     " pipeline chunks; use more layers or fewer pipeline stages"));
  }
  const int64_t each = config.num_layers / num_chunks;
  const int64_t remainder = config.num_layers % num_chunks;
  ChunkRange range;
  range.first_layer =
      static_cast<int>(chunk_index * each + std::min<int64_t>(chunk_index, remainder));
  range.num_layers = static_cast<int>(each + (chunk_index < remainder ? 1 : 0));
  range.has_embedding = chunk_index == 0;
  range.has_head = chunk_index == num_chunks - 1;
  return range;
}

bool BorrowsEmbedding(const ModelConfig& config, const ChunkRange& range) {
  return config.tied && range.has_head && !range.has_embedding;
}

int64_t EmbeddingElements(const ModelConfig& config, int tensor_size) {
  return VocabularyRows(config.vocab_size, tensor_size) * config.hidden_size;
}

// How a dimension is cut evenly over the tensor ranks. Each of `parts` is cut separately: queries,
// keys and values. A part with fewer units than ranks is cut into its units, each of which several
// ranks have.
struct ChunkLayout::Cut {
  int dim = -1;  // -1: not cut, every rank has all of it
  std::vector<int64_t> parts = {};
  int64_t unit = 1;  // rows of a head
};

ChunkLayout::ChunkLayout(const ModelConfig& config, const ChunkRange& range, TensorPlace place)
    : place_(place) {
  MEGASCALE_CHECK(range.first_layer >= 0 && range.num_layers >= 0);
  MEGASCALE_CHECK(range.first_layer + range.num_layers <= config.num_layers);
  MEGASCALE_CHECK(place.index >= 0 && place.index < place.size);
  MEGASCALE_CHECK(CutsEvenly(config, place.size));
  const Cut whole;
  const Cut vocabulary = {.dim = 0, .parts = {config.vocab_size}};
  if (range.has_embedding) {
    Append("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, vocabulary);
    if (config.position == PositionKind::kLearned) {
      Append("model.embed_positions.weight", {config.max_positions, config.hidden_size}, whole);
    }
  }
  for (int i = 0; i < range.num_layers; ++i) {
    layer_offsets_.push_back(num_elements_);
    AppendLayer(config, range.first_layer + i);
  }
  layer_offsets_.push_back(num_elements_);
  if (!range.has_head) return;
  Append("model.norm.weight", {config.hidden_size}, whole);
  if (config.has_norm_bias()) Append("model.norm.bias", {config.hidden_size}, whole);
  if (!config.tied) Append("lm_head.weight", {config.vocab_size, config.hidden_size}, vocabulary);
}

void ChunkLayout::AppendLayer(const ModelConfig& config, int layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  auto append = [&](absl::string_view module, std::vector<int64_t> shape, bool has_bias,
                    const Cut& cut) {
    const std::vector<int64_t> bias_shape = {shape[0]};
    Append(absl::StrCat(prefix, module, ".weight"), std::move(shape), cut);
    if (!has_bias) return;
    Append(absl::StrCat(prefix, module, ".bias"), bias_shape, cut.dim == 0 ? cut : Cut());
  };
  std::vector<int64_t> up_parts(config.up_size() / inner, inner);
  append("input_norm", {hidden}, config.has_norm_bias(), {});
  append("attn.qkv", {config.qkv_size(), hidden}, config.qkv_bias,
         {.dim = 0, .parts = {queries, keys, keys}, .unit = config.head_dim});
  if (config.qk_norm) {
    append("attn.q_norm", {config.head_dim}, /*has_bias=*/false, {});
    append("attn.k_norm", {config.head_dim}, /*has_bias=*/false, {});
  }
  append("attn.out", {hidden, queries}, config.attention_bias, {.dim = 1, .parts = {queries}});
  if (config.has_mlp_norm()) append("post_attention_norm", {hidden}, config.has_norm_bias(), {});
  append("mlp.up", {config.up_size(), hidden}, config.mlp_bias,
         {.dim = 0, .parts = std::move(up_parts)});
  append("mlp.down", {hidden, inner}, config.mlp_bias, {.dim = 1, .parts = {inner}});
}

void ChunkLayout::Append(const std::string& name, std::vector<int64_t> global_shape,
                         const Cut& cut) {
  Parameter parameter;
  parameter.name = name;
  parameter.offset = num_elements_;
  parameter.weight_decay = global_shape.size() > 1;
  parameter.shape = global_shape;
  parameter.global_shape = std::move(global_shape);
  if (place_.size == 1 || cut.dim < 0) {
    parameter.size = Elements(parameter.shape);
    parameter.replicated = place_.size > 1;
    parameter.boxes.push_back({.offset = std::vector<int64_t>(parameter.shape.size(), 0),
                               .shape = parameter.shape,
                               .count = parameter.size,
                               .copy = place_.index,
                               .num_copies = place_.size});
  } else {
    // Several parts of columns would be interleaved in the local tensor instead of following each
    // other.
    MEGASCALE_CHECK_MSG(cut.dim == 0 || cut.parts.size() == 1, name);
    int64_t part_begin = 0;
    int64_t local_dim = 0;
    for (const int64_t part : cut.parts) {
      ParameterBox box;
      const int64_t units = part / cut.unit;
      if (units < place_.size) box.num_copies = static_cast<int>(place_.size / units);
      box.copy = place_.index % box.num_copies;
      const int64_t ranks = place_.size / box.num_copies, index = place_.index / box.num_copies;
      const int64_t share = VocabularyRows(part, ranks);  // only a vocabulary is rounded up
      box.offset.assign(parameter.shape.size(), 0);
      box.offset[cut.dim] = part_begin + index * share;
      box.shape = parameter.global_shape;
      box.shape[cut.dim] = std::min(share, part - index * share);
      box.begin = local_dim * (Elements(box.shape) / box.shape[cut.dim]);
      box.count = Elements(box.shape);
      local_dim += share;
      parameter.boxes.push_back(std::move(box));
      part_begin += part;
    }
    MEGASCALE_CHECK_MSG(part_begin == parameter.global_shape[cut.dim], name);
    parameter.shape[cut.dim] = local_dim;
    parameter.size = Elements(parameter.shape);
  }
  MEGASCALE_CHECK_MSG(parameter.size > 0 && parameter.size == Elements(parameter.shape), name);
  num_elements_ += parameter.size;
  index_of_name_[name] = static_cast<int>(parameters_.size());
  parameters_.push_back(std::move(parameter));
}

int ChunkLayout::Find(absl::string_view name) const {
  const auto found = index_of_name_.find(name);
  return found == index_of_name_.end() ? -1 : found->second;
}

int64_t GlobalIndex(const Parameter& parameter, const ParameterBox& box, int64_t index) {
  MEGASCALE_CHECK(index >= 0 && index < box.count);
  int64_t global = 0;
  int64_t stride = 1;
  for (size_t dim = box.shape.size(); dim-- > 0;) {
    global += (box.offset[dim] + index % box.shape[dim]) * stride;
    index /= box.shape[dim];
    stride *= parameter.global_shape[dim];
  }
  return global;
}

FlatRange SplitEvenly(const FlatRange& range, int num_parts, int index) {
  MEGASCALE_CHECK(index >= 0 && index < num_parts && range.count % num_parts == 0);
  const int64_t part = range.count / num_parts;
  return {range.begin + index * part, part};
}

FlatRange Overlap(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  const int64_t end = std::min(a.begin + a.count, b.begin + b.count);
  return {begin, std::max<int64_t>(0, end - begin)};
}

int64_t ChunkLayout::FirstElement(int layer) const {
  return layer == 0 ? 0 : layer_offsets_.at(static_cast<size_t>(layer));
}

int64_t ChunkLayout::padded_elements(int num_shards) const {
  return Padded(num_elements_, num_shards);
}

std::vector<Bucket> ChunkLayout::Buckets(int num_shards, int64_t bucket_size) const {
  std::vector<Bucket> buckets;
  int64_t end = padded_elements(num_shards);
  for (size_t layer = layer_offsets_.size() - 1; layer-- > 1 && bucket_size > 0;) {
    const int64_t begin = Padded(layer_offsets_[layer], num_shards);
    if (end - begin < bucket_size || buckets.size() + 1 == kBucketsMax) continue;
    buckets.push_back({static_cast<int>(layer), {begin, end - begin}});
    end = begin;
  }
  buckets.push_back({0, {0, end}});
  return buckets;
}

std::vector<ParameterSlice> ChunkLayout::SlicesOf(const FlatRange& range) const {
  MEGASCALE_CHECK(range.begin >= 0 && range.count >= 0);
  const int64_t range_end = range.begin + range.count;
  std::vector<ParameterSlice> slices;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (range_end <= parameter.offset) break;
    if (parameter.offset + parameter.size <= range.begin) continue;
    for (size_t k = 0; k < parameter.boxes.size(); ++k) {
      const ParameterBox& box = parameter.boxes[k];
      const int64_t box_offset = parameter.offset + box.begin;
      const int64_t begin = std::max(range.begin, box_offset);
      const int64_t end = std::min(range_end, box_offset + box.count);
      if (begin >= end) continue;
      slices.push_back({.parameter_index = static_cast<int>(i),
                        .box_index = static_cast<int>(k),
                        .begin = begin - parameter.offset,
                        .begin_in_box = begin - box_offset,
                        .count = end - begin});
    }
  }
  return slices;
}

}  // namespace megascale::model
