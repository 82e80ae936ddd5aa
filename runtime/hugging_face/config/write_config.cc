// The part of config.h that writes.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/hugging_face/config/config.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using job::v1::ModelSpec;
// Keeps the order in which fields are set.
using OrderedJson = nlohmann::ordered_json;

bool HasQkvBias(const ModelSpec& model) {
  return model.has_qkv_bias() ? model.qkv_bias() : model.attention_bias();
}

absl::Status NoArchitecture(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("no architecture of Hugging Face that this program writes has this model: ", why,
                   "; docs/model-options.md lists the options of each family"));
}

absl::StatusOr<Architecture> OfLayerNormModel(const ModelSpec& model) {
  if (model.hidden_act() == job::v1::ACTIVATION_SWIGLU) {
    return NoArchitecture("norm is layernorm, hidden_act is swiglu");
  }
  if (model.sliding_window() > 0) return NoArchitecture("a sliding window with norm = layernorm");
  if (model.num_key_value_heads() != model.num_attention_heads() ||
      model.head_dim() * model.num_attention_heads() != model.hidden_size()) {
    return NoArchitecture("grouped queries or a head_dim of its own with norm = layernorm");
  }
  if (!model.mlp_bias() || HasQkvBias(model) != model.attention_bias() || model.qk_norm()) {
    return NoArchitecture("norm is layernorm without its usual biases, or with qk_norm");
  }
  if (model.position_embedding() == job::v1::POSITION_EMBEDDING_ROTARY) {
    if (model.parallel_block() && model.num_ln_in_parallel_attn() != 2) {
      return NoArchitecture("a parallel block with one norm");
    }
    return Architecture::kGptNeoX;
  }
  if (model.parallel_block() || !model.attention_bias()) {
    return NoArchitecture("learned positions in a parallel block, or without biases of attention");
  }
  return Architecture::kGpt2;
}

absl::StatusOr<Architecture> OfRmsNormModel(const ModelSpec& model) {
  if (model.position_embedding() != job::v1::POSITION_EMBEDDING_ROTARY ||
      model.hidden_act() != job::v1::ACTIVATION_SWIGLU || model.parallel_block() ||
      model.partial_rotary_factor() != 1) {
    return NoArchitecture(
        "norm is rmsnorm without swiglu, serial blocks or rotary positions in whole heads");
  }
  const bool qkv_bias_alone = HasQkvBias(model) && !model.attention_bias();
  if (HasQkvBias(model) != model.attention_bias() && !qkv_bias_alone) {
    return NoArchitecture("a bias of attention's output alone");
  }
  if (model.qk_norm() && (qkv_bias_alone || model.mlp_bias())) {
    return NoArchitecture("qk_norm with biases of queries, keys and values alone, or of the MLP");
  }
  if (model.qk_norm()) return Architecture::kQwen3;
  if (qkv_bias_alone && !model.mlp_bias()) return Architecture::kQwen2;
  if (qkv_bias_alone) return NoArchitecture("qkv_bias without attention_bias, with mlp_bias");
  if (model.sliding_window() == 0) return Architecture::kLlama;
  if (model.attention_bias() || model.mlp_bias()) {
    return NoArchitecture("a sliding window with biases");
  }
  return model.layer_types().empty() ? Architecture::kMistral : Architecture::kMinistral;
}

void WriteGpt2(const ModelSpec& model, OrderedJson* json) {
  OrderedJson& out = *json;
  out["n_embd"] = model.hidden_size();
  out["n_layer"] = model.num_hidden_layers();
  out["n_head"] = model.num_attention_heads();
  out["n_inner"] = model.intermediate_size();
  out["n_positions"] = model.max_position_embeddings();
  out["activation_function"] = model.hidden_act() == job::v1::ACTIVATION_GELU ? "gelu" : "gelu_new";
  out["layer_norm_epsilon"] = model.norm_eps();
  for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) out[dropout] = 0.0;
}

OrderedJson RopeScalingOf(const job::v1::RopeScaling& scaling) {
  OrderedJson out;
  out["factor"] = scaling.factor();
  switch (scaling.rope_type()) {
    case job::v1::ROPE_TYPE_LLAMA3:
      out["rope_type"] = "llama3";
      out["low_freq_factor"] = scaling.low_freq_factor();
      out["high_freq_factor"] = scaling.high_freq_factor();
      out["original_max_position_embeddings"] = scaling.original_max_position_embeddings();
      break;
    case job::v1::ROPE_TYPE_YARN:
      out["rope_type"] = "yarn";
      out["beta_fast"] = scaling.beta_fast();
      out["beta_slow"] = scaling.beta_slow();
      out["attention_factor"] = scaling.attention_factor();
      if (scaling.has_truncate()) out["truncate"] = scaling.truncate();
      out["original_max_position_embeddings"] = scaling.original_max_position_embeddings();
      break;
    default:
      out["rope_type"] = "linear";
  }
  return out;
}

void WriteSizes(const ModelSpec& model, OrderedJson* json) {
  OrderedJson& out = *json;
  out["hidden_size"] = model.hidden_size();
  out["num_hidden_layers"] = model.num_hidden_layers();
  out["num_attention_heads"] = model.num_attention_heads();
  out["intermediate_size"] = model.intermediate_size();
  out["max_position_embeddings"] = model.max_position_embeddings();
  if (model.has_rope_scaling()) out["rope_scaling"] = RopeScalingOf(model.rope_scaling());
}

void WriteNeoX(const ModelSpec& model, OrderedJson* json) {
  OrderedJson& out = *json;
  WriteSizes(model, json);
  out["hidden_act"] = model.hidden_act() == job::v1::ACTIVATION_GELU ? "gelu" : "gelu_new";
  out["layer_norm_eps"] = model.norm_eps();
  out["rotary_emb_base"] = model.rope_theta();
  out["rotary_pct"] = model.partial_rotary_factor();
  out["use_parallel_residual"] = model.parallel_block();
  out["attention_bias"] = model.attention_bias();
  out["attention_dropout"] = 0.0;
  out["hidden_dropout"] = 0.0;
}

// Returns the number of layers before the first one with a window.
int64_t NumFullAtFirst(const ModelSpec& model) {
  const auto& types = model.layer_types();
  return std::find(types.begin(), types.end(), model::kSlidingAttention) - types.begin();
}

void WriteLlamaLike(Architecture architecture, const ModelSpec& model, OrderedJson* json) {
  OrderedJson& out = *json;
  WriteSizes(model, json);
  out["num_key_value_heads"] = model.num_key_value_heads();
  out["head_dim"] = model.head_dim();
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = model.norm_eps();
  out["rope_theta"] = model.rope_theta();
  out["attention_dropout"] = 0.0;
  const bool is_qwen3 = architecture == Architecture::kQwen3;
  if (architecture == Architecture::kLlama || is_qwen3) {
    out["attention_bias"] = model.attention_bias();
  }
  if (architecture == Architecture::kLlama) out["mlp_bias"] = model.mlp_bias();
  if (architecture == Architecture::kMistral || architecture == Architecture::kMinistral) {
    out["sliding_window"] = model.sliding_window();
  }
  if (architecture == Architecture::kQwen2 || is_qwen3) {
    const bool has_window = model.sliding_window() > 0;
    out["use_sliding_window"] = has_window;
    if (has_window) out["sliding_window"] = model.sliding_window();
    out["max_window_layers"] = has_window ? NumFullAtFirst(model) : model.num_hidden_layers();
  }
  if (!model.layer_types().empty()) {
    out["layer_types"] =
        std::vector<std::string>(model.layer_types().begin(), model.layer_types().end());
  }
}

const char* ModelType(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGpt2:
      return "gpt2";
    case Architecture::kGptNeoX:
      return "gpt_neox";
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kMinistral:
      return "ministral";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
  }
  return "";
}

}  // namespace

absl::StatusOr<Architecture> ArchitectureOf(const ModelSpec& model) {
  return model.norm() == job::v1::NORM_RMSNORM ? OfRmsNormModel(model) : OfLayerNormModel(model);
}

absl::StatusOr<std::string> WriteConfig(const ModelSpec& model, absl::string_view dtype) {
  const absl::StatusOr<Architecture> architecture = ArchitectureOf(model);
  if (!architecture.ok()) return architecture.status();
  OrderedJson json;
  json["architectures"] = {std::string(Name(*architecture))};
  json["model_type"] = ModelType(*architecture);
  json["vocab_size"] = model.vocab_size();
  switch (*architecture) {
    case Architecture::kGpt2:
      WriteGpt2(model, &json);
      break;
    case Architecture::kGptNeoX:
      WriteNeoX(model, &json);
      break;
    default:
      WriteLlamaLike(*architecture, model, &json);
  }
  json["initializer_range"] = model.initializer_range();
  json["tie_word_embeddings"] = model.tie_word_embeddings();
  json["torch_dtype"] = std::string(dtype);
  // A byte-level or any other vocabulary of ours may not have the tokens that are the defaults of
  // `transformers`, which warns of those beyond the vocabulary.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  return json.dump(2) + "\n";
}

ModelSpec Resolved(const ModelSpec& model) {
  job::v1::JobSpec spec;
  *spec.mutable_model() = model;
  job::FillModelDefaults(&spec);
  return spec.model();
}

}  // namespace megascale::hugging_face
