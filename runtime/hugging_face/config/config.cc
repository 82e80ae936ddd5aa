#include "runtime/hugging_face/config/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"
#include "runtime/base/text/content_kind.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/base/text/printable.h"
#include "runtime/hugging_face/config/config_fields.h"
#include "runtime/hugging_face/config/json_fields.h"
#include "runtime/hugging_face/config/read_rotary.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using job::v1::ModelSpec;
using Json = nlohmann::json;

constexpr int kLayersMax = 1 << 16;  // a model with more is refused where its tensors are missing

struct NamedArchitecture {
  Architecture architecture;
  absl::string_view name;
  absl::string_view model_type;
};
constexpr NamedArchitecture kArchitectures[] = {
    {Architecture::kGpt2, "GPT2LMHeadModel", "gpt2"},
    {Architecture::kGptNeoX, "GPTNeoXForCausalLM", "gpt_neox"},
    {Architecture::kLlama, "LlamaForCausalLM", "llama"},
    {Architecture::kMistral, "MistralForCausalLM", "mistral"},
    {Architecture::kMinistral, "MinistralForCausalLM", "ministral"},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
};

// The architecture is that of "architectures"; older files have "model_type" alone.
absl::StatusOr<Architecture> FindArchitecture(const Json& json, absl::string_view file) {
  std::string found = "missing";
  std::string type;
  if (const auto names = json.find("architectures");
      names != json.end() && names->is_array() && names->size() == 1 && (*names)[0].is_string()) {
    found = (*names)[0].get<std::string>();
  } else if (const auto model = json.find("model_type");
             model != json.end() && model->is_string()) {
    type = model->get<std::string>();
    found = type;
  }
  std::vector<absl::string_view> known;
  for (const NamedArchitecture& one : kArchitectures) {
    if (one.name == found || one.model_type == type) return one.architecture;
    known.push_back(one.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": the architecture is ", base::Printable(found, kShownBytesMax),
      ", which this program does not have: expected one of ", absl::StrJoin(known, ", ")));
}

void WarnOfDropout(JsonFields* fields, std::vector<std::string>* warnings) {
  for (const char* name :
       {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    const double dropout = fields->Number(name, 0);
    if (dropout == 0) continue;
    warnings->push_back(absl::StrCat(fields->file(), ": ", name, " is ", dropout,
                                     ": ignored, this program trains without dropout"));
  }
}

// Accepts the field only with this value.
void Require(JsonFields* fields, absl::string_view name, bool value) {
  if (fields->Flag(name, value) != value) {
    fields->Refuse(name,
                   absl::StrCat(value ? "true" : "false", ", since this program has no other"));
  }
}

job::v1::Activation GeluOf(JsonFields* fields, absl::string_view name,
                           absl::string_view otherwise) {
  const std::string text = fields->Text(name, otherwise);
  if (text == "gelu" || text == "gelu_python") return job::v1::ACTIVATION_GELU;
  for (const char* tanh :
       {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"}) {
    if (text == tanh) return job::v1::ACTIVATION_GELU_TANH;
  }
  fields->Refuse(name,
                 "gelu, gelu_python, gelu_new, gelu_fast, gelu_accurate, gelu_pytorch_tanh or "
                 "gelu_python_tanh");
  return job::v1::ACTIVATION_GELU;
}

bool IsQwen(Architecture architecture) {
  return architecture == Architecture::kQwen2 || architecture == Architecture::kQwen3;
}

bool IsMistral(Architecture architecture) {
  return architecture == Architecture::kMistral || architecture == Architecture::kMinistral;
}

// Returns the window of the layers that have one; 0: none has.
int32_t ReadWindow(Architecture architecture, JsonFields* fields) {
  const bool is_switched_off = IsQwen(architecture) && !fields->Flag("use_sliding_window", false);
  if (is_switched_off || fields->IsNull("sliding_window")) return 0;
  return fields->Size("sliding_window", 4096);
}

// Reads which layers have no window. `window`: of the others.
std::vector<bool> ReadFullLayers(Architecture architecture, int32_t window, int num_layers,
                                 JsonFields* fields) {
  std::vector<bool> full_layers;
  if (!fields->Has("layer_types")) {
    const double first = IsQwen(architecture) ? fields->Number("max_window_layers", 28) : 0;
    for (int i = 0; i < num_layers; ++i) full_layers.push_back(window == 0 || i < first);
    return full_layers;
  }
  for (const std::string& type : fields->Texts("layer_types")) {
    if (type != model::kFullAttention && type != model::kSlidingAttention) {
      fields->Keep(absl::InvalidArgumentError(
          absl::StrCat(fields->file(), ": layer_types has ", base::Printable(type, kShownBytesMax),
                       ": expected ", model::kFullAttention, " or ", model::kSlidingAttention)));
    }
    full_layers.push_back(type == model::kFullAttention);
  }
  if (full_layers.size() != static_cast<size_t>(num_layers)) {
    fields->Keep(absl::InvalidArgumentError(
        absl::StrCat(fields->file(), ": layer_types has ", full_layers.size(),
                     " words: expected one for each of num_hidden_layers = ", num_layers)));
  }
  return full_layers;
}

// Reads the window and the layers that have it. As in `transformers`, layer_types alone says which,
// and max_window_layers only without it.
void ReadWindows(Architecture architecture, JsonFields* fields, ModelSpec* model) {
  const int32_t window = ReadWindow(architecture, fields);
  const int num_layers = model->num_hidden_layers();
  if (!fields->status().ok() || num_layers > kLayersMax) return;
  const std::vector<bool> full_layers = ReadFullLayers(architecture, window, num_layers, fields);
  const auto num_full = std::count(full_layers.begin(), full_layers.end(), true);
  if (num_full == num_layers) return;
  if (window == 0) {
    const bool is_off = IsQwen(architecture) && !fields->Flag("use_sliding_window", false);
    fields->Refuse(is_off ? "use_sliding_window" : "sliding_window",
                   absl::StrCat(is_off ? "true" : "a window", ", since layer_types has ",
                                model::kSlidingAttention));
    return;
  }
  model->set_sliding_window(window);
  if (num_full == 0) return;
  for (const bool is_full : full_layers) {
    model->add_layer_types(is_full ? model::kFullAttention : model::kSlidingAttention);
  }
}

// Refuses windows of families that have none. `transformers` computes the logits of these without
// one, but generates text with one.
void RefuseWindows(Architecture architecture, int num_layers, JsonFields* fields) {
  if (fields->Has("sliding_window")) {
    fields->Refuse("sliding_window",
                   absl::StrCat("none, since ", Name(architecture), " has no window"));
  }
  if (!fields->Has("layer_types") || num_layers > kLayersMax) return;
  const std::vector<bool> full_layers = ReadFullLayers(architecture, 0, num_layers, fields);
  if (std::count(full_layers.begin(), full_layers.end(), false) > 0) {
    fields->Refuse("layer_types", absl::StrCat("full_attention in every layer, since ",
                                               Name(architecture), " has no window"));
  }
}

// Reads a size that has two names.
int32_t SizeOfEither(JsonFields* fields, const char* name, const char* other,
                     std::optional<int32_t> otherwise = std::nullopt) {
  if (!fields->Has(other)) return fields->Size(name, otherwise);
  const int32_t size = fields->Size(other);
  if (fields->Size(name, size) != size) {
    fields->Refuse(name, absl::StrCat(size, ", as ", other, " says"));
  }
  return size;
}

void ReadGpt2(JsonFields* fields, ModelSpec* model) {
  model->set_hidden_size(SizeOfEither(fields, "n_embd", "hidden_size"));
  model->set_num_hidden_layers(SizeOfEither(fields, "n_layer", "num_hidden_layers"));
  model->set_num_attention_heads(SizeOfEither(fields, "n_head", "num_attention_heads"));
  model->set_intermediate_size(fields->Size("n_inner", 0));
  model->set_max_position_embeddings(
      SizeOfEither(fields, "n_positions", "max_position_embeddings", 1024));
  RefuseWindows(Architecture::kGpt2, model->num_hidden_layers(), fields);
  model->set_position_embedding(job::v1::POSITION_EMBEDDING_LEARNED);
  model->set_norm(job::v1::NORM_LAYERNORM);
  model->set_norm_eps(fields->Number("layer_norm_epsilon", 1e-5));
  model->set_hidden_act(GeluOf(fields, "activation_function", "gelu_new"));
  model->set_tie_word_embeddings(fields->Flag("tie_word_embeddings", true));
  Require(fields, "scale_attn_weights", true);
  Require(fields, "scale_attn_by_inverse_layer_idx", false);
}

void ReadSizes(JsonFields* fields, ModelSpec* model) {
  model->set_hidden_size(fields->Size("hidden_size"));
  model->set_num_hidden_layers(fields->Size("num_hidden_layers"));
  model->set_num_attention_heads(fields->Size("num_attention_heads"));
  model->set_intermediate_size(fields->Size("intermediate_size"));
}

void ReadNeoX(JsonFields* fields, ModelSpec* model) {
  ReadSizes(fields, model);
  model->set_max_position_embeddings(fields->Size("max_position_embeddings", 2048));
  model->set_norm(job::v1::NORM_LAYERNORM);
  model->set_norm_eps(fields->Number("layer_norm_eps", 1e-5));
  model->set_hidden_act(GeluOf(fields, "hidden_act", "gelu"));
  model->set_parallel_block(fields->Flag("use_parallel_residual", true));
  if (model->parallel_block()) model->set_num_ln_in_parallel_attn(2);
  model->set_attention_bias(fields->Flag("attention_bias", true));
  model->set_tie_word_embeddings(fields->Flag("tie_word_embeddings", false));
  RefuseWindows(Architecture::kGptNeoX, model->num_hidden_layers(), fields);
  ReadRotary({.theta = "rotary_emb_base", .part = "rotary_pct"}, fields, model);
  const int head_dim = model->hidden_size() / model->num_attention_heads();
  if (fields->Size("head_dim", head_dim) != head_dim) {
    fields->Refuse("head_dim", absl::StrCat(head_dim, ", hidden_size / num_attention_heads"));
  }
}

// Llama, Mistral, Ministral, Qwen2 and Qwen3.
void ReadLlamaLike(Architecture architecture, JsonFields* fields, ModelSpec* model) {
  ReadSizes(fields, model);
  const bool is_mistral = IsMistral(architecture);
  const bool is_qwen2 = architecture == Architecture::kQwen2;
  const bool is_qwen3 = architecture == Architecture::kQwen3;
  // A null means as many as query heads in each family.
  int kv_heads = model->num_attention_heads();
  if (!fields->IsNull("num_key_value_heads")) {
    if (is_mistral) kv_heads = 8;
    if (is_qwen2 || is_qwen3) kv_heads = 32;
  }
  model->set_num_key_value_heads(fields->Size("num_key_value_heads", kv_heads));
  const bool has_default_head = is_qwen3 && !fields->IsNull("head_dim");
  model->set_head_dim(fields->Size("head_dim", has_default_head ? 128 : 0));
  const int positions = is_mistral ? 4096 * 32 : is_qwen2 || is_qwen3 ? 32768 : 2048;
  model->set_max_position_embeddings(fields->Size("max_position_embeddings", positions));
  model->set_norm(job::v1::NORM_RMSNORM);
  model->set_norm_eps(fields->Number("rms_norm_eps", 1e-6));
  model->set_hidden_act(job::v1::ACTIVATION_SWIGLU);
  const std::string activation = fields->Text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields->Refuse("hidden_act", "silu");
  model->set_tie_word_embeddings(fields->Flag("tie_word_embeddings", false));
  const bool has_option = architecture == Architecture::kLlama || is_qwen3;
  model->set_attention_bias(has_option && fields->Flag("attention_bias", false));
  if (is_qwen2) model->set_qkv_bias(true);
  model->set_qk_norm(is_qwen3);
  model->set_mlp_bias(architecture == Architecture::kLlama && fields->Flag("mlp_bias", false));
  if (architecture == Architecture::kLlama) {
    RefuseWindows(architecture, model->num_hidden_layers(), fields);
    // Older versions computed the same products in so many parts.
    fields->Number("pretraining_tp", 1);
    Require(fields, "rope_interleaved", false);
  } else {
    ReadWindows(architecture, fields, model);
    if (!is_mistral) Require(fields, "use_mrope", false);
  }
  ReadRotary(RotaryNames(), fields, model);
}

// Refuses what would make another kind of model of any family.
void RefuseOtherKinds(JsonFields* fields) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (fields->Has(name)) fields->Refuse(name, "none: weights in fp32, bf16 or fp16");
  }
  Require(fields, "is_encoder_decoder", false);
  Require(fields, "add_cross_attention", false);
  const Json* pruned = fields->Object("pruned_heads");
  if (pruned != nullptr && !pruned->empty()) {
    fields->Refuse("pruned_heads", "none, since every layer has all its heads here");
  }
}

// `transformers` ignores such fields, too; but another program may have meant something by them.
void WarnOfUnknownFields(const Json& json, Architecture architecture, const std::string& file,
                         std::vector<std::string>* warnings) {
  constexpr size_t kShownMax = 8;
  std::vector<std::string> unknown;
  size_t count = 0;
  for (const auto& [name, value] : json.items()) {
    if (value.is_null() || IsKnownField(architecture, name)) continue;
    if (++count <= kShownMax) unknown.push_back(base::Printable(name, kShownBytesMax));
  }
  if (count == 0) return;
  warnings->push_back(
      absl::StrCat(file, ": ", absl::StrJoin(unknown, ", "),
                   count > kShownMax ? absl::StrCat(" and ", count - kShownMax, " more") : "",
                   ": ignored, ", count == 1 ? "no field" : "no fields", " of ", Name(architecture),
                   " that this program knows"));
}

// Refuses sizes whose products no longer fit into 64 bits, or are no model's.
absl::Status CheckSizes(const ModelSpec& model, absl::string_view file) {
  constexpr int64_t kWidthMax = 1 << 24;
  const std::pair<absl::string_view, int64_t> sizes[] = {
      {"vocab_size", model.vocab_size()},
      {"the hidden size", int64_t{model.hidden_size()} * 16},
      {"the MLP's inner size", model.intermediate_size()},
      {"heads × head size", int64_t{model.num_attention_heads()} * model.head_dim()},
      {"key/value heads × head size", int64_t{model.num_key_value_heads()} * model.head_dim()},
      {"the longest sequence", model.max_position_embeddings() / 64},
  };
  for (const auto& [name, size] : sizes) {
    if (size <= kWidthMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", name, " is absurd; is this the configuration of a model?"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view Name(Architecture architecture) {
  for (const NamedArchitecture& one : kArchitectures) {
    if (one.architecture == architecture) return one.name;
  }
  return "unknown";
}

absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view file) {
  RETURN_IF_ERROR(base::Annotate(base::CheckJsonNesting(text), file));
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    const std::string kind = base::WhatItIs(text);
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", kind.empty() ? "is no JSON object" : kind));
  }
  Config config;
  ASSIGN_OR_RETURN(config.architecture, FindArchitecture(json, file));
  JsonFields fields(json, std::string(file));
  config.model.set_vocab_size(fields.Size("vocab_size"));
  config.model.set_initializer_range(fields.Number("initializer_range", 0.02));
  switch (config.architecture) {
    case Architecture::kGpt2:
      ReadGpt2(&fields, &config.model);
      break;
    case Architecture::kGptNeoX:
      ReadNeoX(&fields, &config.model);
      break;
    default:
      ReadLlamaLike(config.architecture, &fields, &config.model);
  }
  RefuseOtherKinds(&fields);
  WarnOfDropout(&fields, &config.warnings);
  WarnOfUnknownFields(json, config.architecture, std::string(file), &config.warnings);
  RETURN_IF_ERROR(fields.status());
  config.model = Resolved(config.model);
  RETURN_IF_ERROR(CheckSizes(config.model, file));
  return config;
}

}  // namespace megascale::hugging_face
