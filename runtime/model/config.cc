#include "runtime/model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/model/chunk_layout.h"

namespace megascale::model {
namespace {

using job::v1::ModelSpec;

constexpr size_t kWordBytesMax = 80;  // of a word in a message

template <typename T>
T OrDefault(T value, T fallback) {
  return value == T{} ? fallback : value;
}

absl::Status Invalid(absl::string_view field, double value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("model.", field, " is ", value, ": expected ", expected));
}

ops::ActivationKind ActivationOf(const ModelSpec& spec) {
  switch (spec.hidden_act()) {
    case job::v1::ACTIVATION_GELU:
      return ops::ActivationKind::kGelu;
    case job::v1::ACTIVATION_SWIGLU:
      return ops::ActivationKind::kSwiGlu;
    default:
      return ops::ActivationKind::kGeluTanh;
  }
}

// By default linear layers have biases if the norm's family does: GPT-2 and NeoX, not Llama.
bool BiasOrDefault(bool given, bool value, const ModelSpec& spec) {
  return given ? value : spec.norm() != job::v1::NORM_RMSNORM;
}

absl::Status SetLayerTypes(const ModelSpec& spec, ModelConfig* config) {
  if (spec.layer_types().empty()) return absl::OkStatus();
  if (spec.layer_types_size() != spec.num_hidden_layers()) {
    return Invalid("layer_types", spec.layer_types_size(),
                   absl::StrCat("one word for each of ", spec.num_hidden_layers(), " layers"));
  }
  for (const std::string& type : spec.layer_types()) {
    if (type != kFullAttention && type != kSlidingAttention) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.layer_types has ", base::Printable(type, kWordBytesMax),
                       ": expected ", kFullAttention, " or ", kSlidingAttention));
    }
    config->full_layers.push_back(type == kFullAttention);
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const ModelConfig& config) {
  const struct {
    const char* field;
    int64_t value;
  } positive[] = {
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_layers},
      {"num_attention_heads", config.num_heads},
      {"num_key_value_heads", config.num_kv_heads},
      {"intermediate_size", config.intermediate_size},
  };
  for (const auto& [field, value] : positive) {
    if (value <= 0) return Invalid(field, value, "a positive number");
  }
  if (config.window < 0) return Invalid("sliding_window", config.window, "0 or a positive number");
  if (config.max_positions < 0 ||
      (config.max_positions == 0 && config.position == PositionKind::kLearned)) {
    return Invalid("max_position_embeddings", config.max_positions,
                   "a positive number (train.seq_length or more)");
  }
  if (config.head_dim < 0) return Invalid("head_dim", config.head_dim, "0 or a positive number");
  if (config.head_dim == 0 && config.hidden_size % config.num_heads != 0) {
    return Invalid(
        "num_attention_heads", config.num_heads,
        absl::StrCat("a divisor of hidden_size ", config.hidden_size, ", or head_dim beside it"));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return Invalid("num_key_value_heads", config.num_kv_heads,
                   absl::StrCat("a divisor of num_attention_heads ", config.num_heads));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const ModelConfig& config) {
  if (config.position == PositionKind::kRotary &&
      (config.rotary_dim % 2 != 0 || config.rotary_dim < 2 ||
       config.rotary_dim > config.head_dim)) {
    return Invalid("partial_rotary_factor",
                   static_cast<double>(config.rotary_dim) / config.head_dim,
                   absl::StrCat("an even part of the head size ", config.head_dim,
                                ", since rotary positions turn pairs of elements"));
  }
  if (!(config.norm_eps > 0)) return Invalid("norm_eps", config.norm_eps, "a positive number");
  if (!(config.init_range > 0)) {
    return Invalid("initializer_range", config.init_range, "a positive number");
  }
  if (!(config.rope_theta > 0)) {
    return Invalid("rope_theta", config.rope_theta, "a positive number");
  }
  const ops::RotaryScaling& scaling = config.rope_scaling;
  if (!(scaling.factor >= 1)) {
    return Invalid("rope_scaling.factor", scaling.factor, "at least 1");
  }
  if (!(scaling.amplitude > 0) || !std::isfinite(scaling.kept_at_0)) {
    return Invalid("rope_scaling.original_max_position_embeddings", 0, "a positive number");
  }
  return absl::OkStatus();
}

// Keeps frequencies that turn more than high_freq_factor times in the original context, divides
// those that turn less than low_freq_factor times, and blends in between. Source: the rope scaling
// of Llama 3.1.
void SetLlama3(const job::v1::RopeScaling& spec, ops::RotaryScaling* scaling) {
  const double low = OrDefault(spec.low_freq_factor(), 1.0);
  const double width = OrDefault(spec.high_freq_factor(), 4.0) - low;
  scaling->kept_at_0 = -low / width;
  scaling->kept_per_frequency =
      spec.original_max_position_embeddings() / (2 * std::numbers::pi * width);
}

// Keeps pairs that turn more than beta_fast times in the original context, divides those that turn
// less than beta_slow times, and blends by the pair's index. Source: Peng et al., YaRN, 2023,
// section 3.2; the limits are rounded as in transformers.
void SetYarn(const job::v1::RopeScaling& spec, const ModelConfig& config,
             ops::RotaryScaling* scaling) {
  const auto pair_that_turns = [&](double times) {
    return static_cast<double>(config.rotary_dim) *
           std::log(spec.original_max_position_embeddings() / (2 * std::numbers::pi * times)) /
           (2 * std::log(config.rope_theta));
  };
  double first = pair_that_turns(OrDefault(spec.beta_fast(), 32.0));
  double last = pair_that_turns(OrDefault(spec.beta_slow(), 1.0));
  if (!spec.has_truncate() || spec.truncate()) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(0.0, first);
  last = std::min(static_cast<double>(config.rotary_dim - 1), last);
  if (first == last) last += 0.001;
  scaling->kept_at_0 = last / (last - first);
  scaling->kept_per_pair = -1 / (last - first);
  scaling->amplitude = OrDefault(spec.attention_factor(), 0.1 * std::log(spec.factor()) + 1);
}

ops::RotaryScaling ScalingOf(const job::v1::RopeScaling& spec, const ModelConfig& config) {
  ops::RotaryScaling scaling;
  if (spec.rope_type() == job::v1::ROPE_TYPE_UNSPECIFIED) return scaling;
  scaling.factor = spec.factor();
  if (spec.rope_type() == job::v1::ROPE_TYPE_LLAMA3) SetLlama3(spec, &scaling);
  if (spec.rope_type() == job::v1::ROPE_TYPE_YARN) SetYarn(spec, config, &scaling);
  return scaling;
}

}  // namespace

absl::StatusOr<ModelConfig> MakeModelConfig(const ModelSpec& spec) {
  ModelConfig config;
  config.vocab_size = OrDefault(spec.vocab_size(), 256);
  config.hidden_size = spec.hidden_size();
  config.num_layers = spec.num_hidden_layers();
  config.num_heads = spec.num_attention_heads();
  config.num_kv_heads = OrDefault(spec.num_key_value_heads(), spec.num_attention_heads());
  config.intermediate_size = OrDefault<int64_t>(spec.intermediate_size(), 4 * config.hidden_size);
  config.max_positions = spec.max_position_embeddings();
  config.position = spec.position_embedding() == job::v1::POSITION_EMBEDDING_ROTARY
                        ? PositionKind::kRotary
                        : PositionKind::kLearned;
  config.norm =
      spec.norm() == job::v1::NORM_RMSNORM ? ops::NormKind::kRmsNorm : ops::NormKind::kLayerNorm;
  config.norm_eps = OrDefault(spec.norm_eps(), 1e-5);
  config.activation = ActivationOf(spec);
  config.parallel_block = spec.parallel_block();
  config.shared_norm = spec.num_ln_in_parallel_attn() != 2;
  config.attention_bias = BiasOrDefault(spec.has_attention_bias(), spec.attention_bias(), spec);
  config.qkv_bias = spec.has_qkv_bias() ? spec.qkv_bias() : config.attention_bias;
  config.qk_norm = spec.qk_norm();
  config.mlp_bias = BiasOrDefault(spec.has_mlp_bias(), spec.mlp_bias(), spec);
  config.window = spec.sliding_window();
  RETURN_IF_ERROR(SetLayerTypes(spec, &config));
  config.tied = spec.tie_word_embeddings();
  config.init_range = OrDefault(spec.initializer_range(), 0.02);
  config.rope_theta = OrDefault(spec.rope_theta(), 10000.0);
  config.head_dim = spec.head_dim();
  RETURN_IF_ERROR(CheckSizes(config));
  config.head_dim = OrDefault(config.head_dim, config.hidden_size / config.num_heads);
  // Truncated, as in Hugging Face.
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) *
                                           OrDefault(spec.partial_rotary_factor(), 1.0));
  config.rope_scaling = ScalingOf(spec.rope_scaling(), config);
  RETURN_IF_ERROR(CheckNumbers(config));
  return config;
}

bool CutsEvenly(const ModelConfig& config, int tensor_size) {
  if (tensor_size < 1) return false;
  for (const int64_t cut : {config.num_heads, config.intermediate_size}) {
    if (cut % tensor_size != 0) return false;
  }
  const int64_t kv_heads = config.num_kv_heads;
  if (kv_heads % tensor_size != 0 && tensor_size % kv_heads != 0) return false;
  return (tensor_size - 1) * VocabularyRows(config.vocab_size, tensor_size) < config.vocab_size;
}

int64_t VocabularyRows(int64_t vocab_size, int tensor_size) {
  return (vocab_size + tensor_size - 1) / tensor_size;
}

ModelConfig PartOfTensorRank(ModelConfig config, int tensor_size) {
  MEGASCALE_CHECK(CutsEvenly(config, tensor_size));
  config.num_heads /= tensor_size;
  config.num_kv_heads = std::max<int64_t>(1, config.num_kv_heads / tensor_size);
  config.intermediate_size /= tensor_size;
  config.vocab_size = VocabularyRows(config.vocab_size, tensor_size);
  return config;
}

int64_t NumParameters(const ModelConfig& config) {
  const ChunkRange whole{0, static_cast<int>(config.num_layers), true, true};
  return ChunkLayout(config, whole).num_elements();
}

double TrainFlopsPerToken(const ModelConfig& config, int64_t seq) {
  const TokenFlops flops =
      FlopsPerToken(config, {0, static_cast<int>(config.num_layers), true, true}, seq);
  return flops.forward + flops.backward();
}

}  // namespace megascale::model
