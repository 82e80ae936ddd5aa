#include "runtime/hugging_face/config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/base/text/printable.h"
#include "runtime/hugging_face/json_fields.h"
#include "runtime/hugging_face/limits.h"

namespace megascale::hugging_face {
namespace {

using job::v1::ModelSpec;
using Json = nlohmann::json;

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
  if (text == "gelu") return job::v1::ACTIVATION_GELU;
  if (text == "gelu_new" || text == "gelu_fast" || text == "gelu_pytorch_tanh") {
    return job::v1::ACTIVATION_GELU_TANH;
  }
  fields->Refuse(name, "gelu, gelu_new, gelu_fast or gelu_pytorch_tanh");
  return job::v1::ACTIVATION_GELU;
}

void ReadGpt2(JsonFields* fields, ModelSpec* model) {
  model->set_hidden_size(fields->Size("n_embd"));
  model->set_num_hidden_layers(fields->Size("n_layer"));
  model->set_num_attention_heads(fields->Size("n_head"));
  model->set_intermediate_size(fields->Size("n_inner", 0));
  model->set_max_position_embeddings(fields->Size("n_positions", 1024));
  model->set_position_embedding(job::v1::POSITION_EMBEDDING_LEARNED);
  model->set_norm(job::v1::NORM_LAYERNORM);
  model->set_norm_eps(fields->Number("layer_norm_epsilon", 1e-5));
  model->set_hidden_act(GeluOf(fields, "activation_function", "gelu_new"));
  model->set_tie_word_embeddings(fields->Flag("tie_word_embeddings", true));
  Require(fields, "scale_attn_weights", true);
  Require(fields, "scale_attn_by_inverse_layer_idx", false);
  Require(fields, "add_cross_attention", false);
}

// Reads the scaling in the field `section`, whose value is `object`.
void ReadRopeScaling(JsonFields* fields, const char* section, const Json& object,
                     ModelSpec* model) {
  JsonFields scaling(object, fields->file(), absl::StrCat(section, "."));
  // "type" is the older name.
  const char* key = scaling.Has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.Text(key, "default");
  job::v1::RopeScaling* rope = model->mutable_rope_scaling();
  if (type == "default") {
    model->clear_rope_scaling();
  } else if (type == "linear") {
    rope->set_rope_type(job::v1::ROPE_TYPE_LINEAR);
  } else if (type == "llama3") {
    rope->set_rope_type(job::v1::ROPE_TYPE_LLAMA3);
    rope->set_low_freq_factor(scaling.Number("low_freq_factor", 1));
    rope->set_high_freq_factor(scaling.Number("high_freq_factor", 4));
  } else if (type == "yarn") {
    rope->set_rope_type(job::v1::ROPE_TYPE_YARN);
    rope->set_beta_fast(scaling.Number("beta_fast", 32));
    rope->set_beta_slow(scaling.Number("beta_slow", 1));
    rope->set_attention_factor(scaling.Number("attention_factor", 0));
    if (scaling.Has("mscale"))
      scaling.Refuse("mscale", "none, since this program has no such option");
    Require(&scaling, "truncate", true);
  } else {
    scaling.Refuse(key, "default, linear, llama3 or yarn");
  }
  if (model->has_rope_scaling()) {
    rope->set_factor(scaling.Number("factor", 0));
    if (!(rope->factor() >= 1)) scaling.Refuse("factor", "a number of at least 1");
  }
  if (model->has_rope_scaling() && type != "linear") {
    rope->set_original_max_position_embeddings(
        scaling.Size("original_max_position_embeddings", model->max_position_embeddings()));
  }
  if (!scaling.status().ok()) fields->Keep(scaling.status());
}

std::string ScalingText(const ModelSpec& model) {
  return model.has_rope_scaling() ? absl::StrCat("{", model.rope_scaling().ShortDebugString(), "}")
                                  : "no scaling";
}

// Newer versions of `transformers` write "rope_parameters" with theta and factor in it; what it
// leaves out is in the older fields.
void ReadRotary(JsonFields* fields, const char* theta, const char* part, ModelSpec* model) {
  model->set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  model->set_rope_theta(fields->Number(theta, 10000));
  if (part != nullptr) model->set_partial_rotary_factor(fields->Number(part, 0.25));
  const Json* scaling = fields->Object("rope_scaling");
  if (scaling != nullptr) ReadRopeScaling(fields, "rope_scaling", *scaling, model);
  const Json* parameters = fields->Object("rope_parameters");
  if (parameters != nullptr) {
    const ModelSpec older = *model;
    JsonFields rope(*parameters, fields->file(), "rope_parameters.");
    model->set_rope_theta(rope.Number("rope_theta", older.rope_theta()));
    if (part != nullptr) {
      model->set_partial_rotary_factor(
          rope.Number("partial_rotary_factor", older.partial_rotary_factor()));
    }
    if (!rope.status().ok()) fields->Keep(rope.status());
    model->clear_rope_scaling();
    ReadRopeScaling(fields, "rope_parameters", *parameters, model);
    if (scaling != nullptr && ScalingText(older) != ScalingText(*model)) {
      fields->Keep(absl::InvalidArgumentError(absl::StrCat(
          fields->file(), ": rope_scaling has ", ScalingText(older), ", rope_parameters has ",
          ScalingText(*model), ": expected one of them, or equal ones")));
    }
  }
  if (!(model->rope_theta() >= 1)) fields->Refuse(theta, "a number of at least 1");
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
  ReadRotary(fields, "rotary_emb_base", "rotary_pct", model);
}

// The window of models in which it may be of some layers only, and switched off.
void ReadQwenWindow(JsonFields* fields, ModelSpec* model) {
  if (!fields->Flag("use_sliding_window", false)) return;
  const int layers = model->num_hidden_layers();
  const double full_layers = fields->Number("max_window_layers", 28);
  if (full_layers >= layers || fields->IsNull("sliding_window")) return;
  if (full_layers > 0) {
    fields->Refuse("max_window_layers", absl::StrCat("0, or at least num_hidden_layers = ", layers,
                                                     ", since all layers have one window here"));
  }
  model->set_sliding_window(fields->Size("sliding_window", 4096));
}

// Llama, Mistral, Qwen2 and Qwen3.
void ReadLlamaLike(Architecture architecture, JsonFields* fields, ModelSpec* model) {
  ReadSizes(fields, model);
  const bool is_mistral = architecture == Architecture::kMistral;
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
  if (is_mistral && !fields->IsNull("sliding_window")) {
    model->set_sliding_window(fields->Size("sliding_window", 4096));
  }
  if (is_qwen2 || is_qwen3) ReadQwenWindow(fields, model);
  if (fields->Number("pretraining_tp", 1) != 1) fields->Refuse("pretraining_tp", "1");
  ReadRotary(fields, "rope_theta", nullptr, model);
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
    return absl::InvalidArgumentError(absl::StrCat(file, ": is no JSON object"));
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
  if (fields.Has("quantization_config")) {
    fields.Refuse("quantization_config", "none: weights in fp32, bf16 or fp16");
  }
  WarnOfDropout(&fields, &config.warnings);
  RETURN_IF_ERROR(fields.status());
  config.model = Resolved(config.model);
  RETURN_IF_ERROR(CheckSizes(config.model, file));
  return config;
}

}  // namespace megascale::hugging_face
