#include "runtime/model/chunk_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::model {
namespace {

constexpr int64_t kShardAlignment =
    64;  // elements: a cache line of bf16 is 32, a vector of fp32 16

int64_t ShardElements(int64_t num_elements, int num_shards) {
  MEGASCALE_CHECK(num_shards >= 1);
  const int64_t shard = (num_elements + num_shards - 1) / num_shards;
  return (shard + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
}

}  // namespace

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
  if (config.tied && num_chunks > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.tie_word_embeddings is true with ", num_chunks,
        " pipeline chunks: expected one chunk, since embedding and output matrix would lie on "
        "different ranks; untie them or use one pipeline stage"));
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

ChunkLayout::ChunkLayout(const ModelConfig& config, const ChunkRange& range) {
  MEGASCALE_CHECK(range.first_layer >= 0 && range.num_layers >= 0);
  MEGASCALE_CHECK(range.first_layer + range.num_layers <= config.num_layers);
  if (range.has_embedding) {
    Append("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
    if (config.position == PositionKind::kLearned) {
      Append("model.embed_positions.weight", {config.max_positions, config.hidden_size});
    }
  }
  for (int i = 0; i < range.num_layers; ++i) AppendLayer(config, range.first_layer + i);
  if (!range.has_head) return;
  Append("model.norm.weight", {config.hidden_size});
  if (config.has_norm_bias()) Append("model.norm.bias", {config.hidden_size});
  if (config.tied) {
    MEGASCALE_CHECK_MSG(range.has_embedding, "tied output matrix without the embedding");
  } else {
    Append("lm_head.weight", {config.vocab_size, config.hidden_size});
  }
}

void ChunkLayout::AppendLayer(const ModelConfig& config, int layer) {
  const int64_t hidden = config.hidden_size;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  auto append = [&](absl::string_view module, std::vector<int64_t> shape, bool has_bias) {
    const std::vector<int64_t> bias_shape = {shape[0]};
    Append(absl::StrCat(prefix, module, ".weight"), std::move(shape));
    if (has_bias) Append(absl::StrCat(prefix, module, ".bias"), bias_shape);
  };
  append("input_norm", {hidden}, config.has_norm_bias());
  append("attn.qkv", {config.qkv_size(), hidden}, config.attention_bias);
  append("attn.out", {hidden, config.num_heads * config.head_dim}, config.attention_bias);
  if (config.has_mlp_norm()) append("post_attention_norm", {hidden}, config.has_norm_bias());
  append("mlp.up", {config.up_size(), hidden}, config.mlp_bias);
  append("mlp.down", {hidden, config.intermediate_size}, config.mlp_bias);
}

void ChunkLayout::Append(const std::string& name, std::vector<int64_t> shape) {
  Parameter parameter;
  parameter.name = name;
  parameter.offset = num_elements_;
  parameter.size = 1;
  for (const int64_t dim : shape) parameter.size *= dim;
  parameter.weight_decay = shape.size() > 1;
  parameter.shape = std::move(shape);
  MEGASCALE_CHECK_MSG(parameter.size > 0, name);
  num_elements_ += parameter.size;
  index_of_name_[name] = static_cast<int>(parameters_.size());
  parameters_.push_back(std::move(parameter));
}

int ChunkLayout::Find(absl::string_view name) const {
  const auto found = index_of_name_.find(name);
  return found == index_of_name_.end() ? -1 : found->second;
}

int64_t ChunkLayout::padded_elements(int num_shards) const {
  return ShardElements(num_elements_, num_shards) * num_shards;
}

FlatRange ChunkLayout::ShardRange(int num_shards, int index) const {
  MEGASCALE_CHECK(index >= 0 && index < num_shards);
  const int64_t shard = ShardElements(num_elements_, num_shards);
  return {index * shard, shard};
}

std::vector<ParameterSlice> ChunkLayout::SlicesOf(const FlatRange& range) const {
  MEGASCALE_CHECK(range.begin >= 0 && range.count >= 0);
  const int64_t range_end = range.begin + range.count;
  std::vector<ParameterSlice> slices;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const int64_t begin = std::max(range.begin, parameter.offset);
    const int64_t end = std::min(range_end, parameter.offset + parameter.size);
    if (begin < end) slices.push_back({static_cast<int>(i), begin - parameter.offset, end - begin});
  }
  return slices;
}

}  // namespace megascale::model
