#include "runtime/hugging_face/tensor_map.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/base/check.h"
#include "runtime/model/chunk_layout.h"

namespace megascale::hugging_face {
namespace {

constexpr char kLayer = '#';

// One of our modules and theirs; '#' is the layer. Several of theirs are separated by spaces: ours
// has the rows of one below those of the other.
struct Module {
  absl::string_view ours;
  absl::string_view theirs;
  Form form = Form::kSame;
};

constexpr Module kGpt2Modules[] = {
    {"model.embed_tokens", "transformer.wte"},
    {"model.embed_positions", "transformer.wpe"},
    {"model.layers.#.input_norm", "transformer.h.#.ln_1"},
    {"model.layers.#.attn.qkv", "transformer.h.#.attn.c_attn", Form::kTransposed},
    {"model.layers.#.attn.out", "transformer.h.#.attn.c_proj", Form::kTransposed},
    {"model.layers.#.post_attention_norm", "transformer.h.#.ln_2"},
    {"model.layers.#.mlp.up", "transformer.h.#.mlp.c_fc", Form::kTransposed},
    {"model.layers.#.mlp.down", "transformer.h.#.mlp.c_proj", Form::kTransposed},
    {"model.norm", "transformer.ln_f"},
    {"lm_head", "lm_head"},
};

constexpr Module kNeoXModules[] = {
    {"model.embed_tokens", "gpt_neox.embed_in"},
    {"model.layers.#.input_norm", "gpt_neox.layers.#.input_layernorm"},
    {"model.layers.#.attn.qkv", "gpt_neox.layers.#.attention.query_key_value", Form::kByHead},
    {"model.layers.#.attn.out", "gpt_neox.layers.#.attention.dense"},
    {"model.layers.#.post_attention_norm", "gpt_neox.layers.#.post_attention_layernorm"},
    {"model.layers.#.mlp.up", "gpt_neox.layers.#.mlp.dense_h_to_4h"},
    {"model.layers.#.mlp.down", "gpt_neox.layers.#.mlp.dense_4h_to_h"},
    {"model.norm", "gpt_neox.final_layer_norm"},
    {"lm_head", "embed_out"},
};

// Llama, Mistral, Ministral, Qwen2 and Qwen3.
constexpr Module kLlamaModules[] = {
    {"model.embed_tokens", "model.embed_tokens"},
    {"model.layers.#.input_norm", "model.layers.#.input_layernorm"},
    {"model.layers.#.attn.qkv",
     "model.layers.#.self_attn.q_proj model.layers.#.self_attn.k_proj "
     "model.layers.#.self_attn.v_proj"},
    {"model.layers.#.attn.q_norm", "model.layers.#.self_attn.q_norm"},
    {"model.layers.#.attn.k_norm", "model.layers.#.self_attn.k_norm"},
    {"model.layers.#.attn.out", "model.layers.#.self_attn.o_proj"},
    {"model.layers.#.post_attention_norm", "model.layers.#.post_attention_layernorm"},
    {"model.layers.#.mlp.up", "model.layers.#.mlp.gate_proj model.layers.#.mlp.up_proj"},
    {"model.layers.#.mlp.down", "model.layers.#.mlp.down_proj"},
    {"model.norm", "model.norm"},
    {"lm_head", "lm_head"},
};

absl::Span<const Module> ModulesOf(Architecture architecture) {
  if (architecture == Architecture::kGpt2) return kGpt2Modules;
  if (architecture == Architecture::kGptNeoX) return kNeoXModules;
  return kLlamaModules;
}

// Splits "model.layers.3.attn.qkv.weight" into "model.layers.#.attn.qkv", "3" and "weight".
struct SplitName {
  std::string module, layer, kind;
};
SplitName Split(absl::string_view parameter) {
  SplitName split;
  std::vector<std::string> words = absl::StrSplit(parameter, '.');
  split.kind = words.back();
  words.pop_back();
  for (std::string& word : words) {
    int number;
    if (absl::SimpleAtoi(word, &number)) split.layer = std::exchange(word, std::string(1, kLayer));
  }
  split.module = absl::StrJoin(words, ".");
  return split;
}

// Returns the rows that each of several of their modules has of ours.
std::vector<int64_t> RowsOf(absl::string_view module, int64_t rows, size_t count,
                            const model::ModelConfig& config) {
  if (absl::EndsWith(module, ".attn.qkv") && count == 3) {
    const int64_t keys = config.num_kv_heads * config.head_dim;
    return {config.num_heads * config.head_dim, keys, keys};
  }
  return std::vector<int64_t>(count, rows / static_cast<int64_t>(count));
}

}  // namespace

std::vector<int64_t> TensorMap::ShapeOf(const Part& part) const {
  if (shape.size() == 1) return {part.rows};
  if (part.form == Form::kTransposed) return {shape[1], part.rows};
  return {part.rows, shape[1]};
}

TensorMap::Run TensorMap::OurRow(const Part& part, int64_t row) const {
  if (part.form == Form::kSame) return {part.first_row + row, part.rows - row};
  MEGASCALE_CHECK(part.form == Form::kByHead);
  const int64_t head = row / (3 * head_dim);
  const int64_t kind = row / head_dim % 3;
  const int64_t within = row % head_dim;
  return {part.first_row + (kind * num_heads + head) * head_dim + within, head_dim - within};
}

TensorMap::Run TensorMap::TheirRow(const Part& part, int64_t row) const {
  row -= part.first_row;
  if (part.form == Form::kSame) return {row, part.rows - row};
  MEGASCALE_CHECK(part.form == Form::kByHead);
  const int64_t kind = row / (num_heads * head_dim);
  const int64_t head = row / head_dim % num_heads;
  const int64_t within = row % head_dim;
  return {(head * 3 + kind) * head_dim + within, head_dim - within};
}

std::vector<TensorMap> MapTensors(Architecture architecture, const model::ModelConfig& config) {
  const model::ChunkRange whole{0, static_cast<int>(config.num_layers), true, true};
  const model::ChunkLayout layout(config, whole);
  const absl::Span<const Module> modules = ModulesOf(architecture);
  std::vector<TensorMap> maps;
  for (const model::Parameter& parameter : layout.parameters()) {
    const SplitName split = Split(parameter.name);
    const auto* module = std::find_if(modules.begin(), modules.end(),
                                      [&](const Module& one) { return one.ours == split.module; });
    MEGASCALE_CHECK_MSG(module != modules.end(), parameter.name);
    TensorMap map{.name = parameter.name,
                  .shape = parameter.shape,
                  .parts = {},
                  .num_heads = config.num_heads,
                  .head_dim = config.head_dim};
    const std::vector<std::string> names = absl::StrSplit(module->theirs, ' ');
    const std::vector<int64_t> rows =
        RowsOf(module->ours, parameter.shape[0], names.size(), config);
    int64_t first_row = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      Form form = module->form;
      if (form == Form::kTransposed && parameter.shape.size() == 1) form = Form::kSame;
      const std::string name = absl::StrReplaceAll(names[i], {{"#", split.layer}});
      map.parts.push_back({absl::StrCat(name, ".", split.kind), form, first_row, rows[i]});
      first_row += rows[i];
    }
    MEGASCALE_CHECK(first_row == parameter.shape[0]);
    maps.push_back(std::move(map));
  }
  return maps;
}

std::string EmbeddingName(Architecture architecture) {
  return absl::StrCat(ModulesOf(architecture).front().theirs, ".weight");
}

std::string HeadName(Architecture architecture) {
  return absl::StrCat(ModulesOf(architecture).back().theirs, ".weight");
}

bool IsTable(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".attention.bias") ||
         absl::EndsWith(name, ".attention.masked_bias") || absl::StrContains(name, "rotary_emb.");
}

}  // namespace megascale::hugging_face
