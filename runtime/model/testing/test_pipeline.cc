#include "runtime/model/testing/test_pipeline.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/model/initialize.h"
#include "tests/soak.h"

namespace megascale::model {
namespace {

using tensor::Arena;
using tensor::DType;

constexpr uint64_t kSeed = 5;
constexpr char kEmbedding[] = "model.embed_tokens.weight";

void Copy(const Matrix& from, const Matrix& to) {
  MEGASCALE_CHECK(from.rows == to.rows && from.stride == to.stride && from.dtype == to.dtype);
  std::memcpy(to.data, from.data, from.rows * from.stride * SizeOf(from.dtype));
}

std::vector<double> AsDoubles(const Vector& vector) {
  std::vector<double> values(vector.size);
  for (int64_t i = 0; i < vector.size; ++i) {
    switch (vector.dtype) {
      case DType::kF64:
        values[i] = vector.as<double>()[i];
        break;
      case DType::kF32:
        values[i] = vector.as<float>()[i];
        break;
      case DType::kBF16:
        values[i] = tensor::ToFloat(vector.as<tensor::BFloat16>()[i]);
        break;
      case DType::kI32:
        MEGASCALE_CHECK_MSG(false, "not a number of the model");
    }
  }
  return values;
}

// Sets initial weights, with norms and biases moved away from their initial 1 and 0.
void FillParameters(const ModelConfig& config, const ChunkLayout& layout, ops::Ops* ops,
                    const Vector& weights) {
  const DType accumulation = AccumulationType(ops->compute());
  Arena arena = *Arena::Create(Arena::BytesFor(accumulation, layout.num_elements()));
  const Vector master = arena.Allocate(accumulation, layout.num_elements());
  const auto bytes = absl::MakeSpan(master.as<std::byte>(), static_cast<size_t>(master.bytes()));
  InitializeParameters(config, layout, {.seed = kSeed}, 0,
                       tensor::HostVector::OfBytes(bytes, accumulation));
  for (const Parameter& parameter : layout.parameters()) {
    if (parameter.shape.size() > 1) continue;
    for (const ParameterBox& box : parameter.boxes) {
      for (int64_t i = 0; i < box.count; ++i) {
        const int64_t index = GlobalIndex(parameter, box, i);
        const double shift = 0.3 * std::sin(1.0 + 7.0 * index + parameter.name.size());
        const int64_t at = parameter.offset + box.begin + i;
        if (accumulation == DType::kF64) {
          master.as<double>()[at] += shift;
        } else {
          master.as<float>()[at] += static_cast<float>(shift);
        }
      }
    }
  }
  ops->Cast(master, weights);
}

using ops::ActivationKind;
using ops::NormKind;

enum class Block { kSerial, kParallelSharedNorm, kParallelTwoNorms };

ModelConfig WithBlock(ModelConfig config, Block block) {
  config.parallel_block = block != Block::kSerial;
  config.shared_norm = block != Block::kParallelTwoNorms;
  return config;
}

// `rotary_dim` 0: learned positions.
ModelConfig WithPositions(ModelConfig config, int64_t rotary_dim) {
  config.position = rotary_dim == 0 ? PositionKind::kLearned : PositionKind::kRotary;
  config.rotary_dim = rotary_dim;
  return config;
}

// Options that alternate among the combinations of the others, so as not to multiply their number:
// each value meets each value of every other option.
void AddNewerOptions(size_t index, ModelConfig* config) {
  config->qkv_bias = config->attention_bias != (index % 5 == 1);
  config->qk_norm = index / 3 % 2 == 1;
  if (index % 7 == 2) {
    config->rope_scaling = {
        .factor = 4, .kept_at_0 = -0.1, .kept_per_frequency = 0.8, .amplitude = 1.2};
  }
}

}  // namespace

ModelConfig TinyConfig() {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 8;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.intermediate_size = 12;
  config.max_positions = 7;
  config.init_range = 0.3;
  return config;
}

ModelConfig LargerConfig() {
  ModelConfig config;
  config.vocab_size = 101;
  config.hidden_size = 48;
  config.num_layers = 3;
  config.num_heads = 3;
  config.num_kv_heads = 3;
  config.head_dim = 16;
  config.intermediate_size = 192;
  config.max_positions = 37;
  config.init_range = 0.1;
  return config;
}

// Returns full_layers of a model whose first layer has a window, whose second has none, and so on.
std::vector<bool> EveryOtherLayer(const ModelConfig& config) {
  std::vector<bool> full_layers;
  for (int64_t i = 0; i < config.num_layers; ++i) full_layers.push_back(i % 2 != 0);
  return full_layers;
}

ModelConfig NewStyle(ModelConfig config, int64_t window) {
  config.norm = ops::NormKind::kRmsNorm;
  config.activation = ops::ActivationKind::kSwiGlu;
  config.position = PositionKind::kRotary;
  config.parallel_block = true;
  config.attention_bias = false;
  config.qkv_bias = false;
  config.mlp_bias = false;
  config.num_kv_heads = 1;
  config.window = window;
  return config;
}

ModelConfig NeoXStyle(ModelConfig config) {
  config.activation = ops::ActivationKind::kGelu;
  config.position = PositionKind::kRotary;
  config.rotary_dim = config.head_dim / 2;
  config.parallel_block = true;
  config.shared_norm = false;
  return config;
}

ModelConfig QwenStyle(ModelConfig config, int64_t window) {
  config = NewStyle(config, window);
  if (window > 0) config.full_layers = EveryOtherLayer(config);
  config.parallel_block = false;
  config.qkv_bias = true;
  config.qk_norm = true;
  config.rope_scaling = {.factor = 8, .kept_at_0 = -0.3, .kept_per_frequency = 6};
  return config;
}

std::vector<ModelConfig> Styles(const ModelConfig& base, int64_t window) {
  return {base, NewStyle(base, window), NeoXStyle(base), QwenStyle(base, window)};
}

std::vector<ModelConfig> AllCombinations(const ModelConfig& base) {
  std::vector<ModelConfig> configs;
  for (const NormKind norm : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const ActivationKind activation :
         {ActivationKind::kGelu, ActivationKind::kGeluTanh, ActivationKind::kSwiGlu}) {
      for (const Block block :
           {Block::kSerial, Block::kParallelSharedNorm, Block::kParallelTwoNorms}) {
        for (const int64_t rotary_dim : {0, 2, 4}) {
          for (int bits = 0; bits < 32; ++bits) {
            ModelConfig config = WithPositions(WithBlock(base, block), rotary_dim);
            config.norm = norm;
            config.activation = activation;
            if (bits & 1) config.num_kv_heads = 1;
            if (bits & 2) config.window = 3;
            if ((bits & 10) == 10) config.full_layers = EveryOtherLayer(base);
            config.tied = (bits & 4) != 0;
            config.attention_bias = (bits & 8) != 0;
            config.mlp_bias = (bits & 16) != 0;
            AddNewerOptions(configs.size(), &config);
            configs.push_back(config);
          }
        }
      }
    }
  }
  return configs;
}

std::vector<ModelConfig> SomeCombinations(const ModelConfig& base) {
  const std::vector<ModelConfig> all = AllCombinations(base);
  std::vector<ModelConfig> some;
  for (size_t i = 0; i < all.size(); i += IsSoak() ? 1 : 5) some.push_back(all[i]);
  return some;
}

std::string Describe(const ModelConfig& config) {
  return absl::StrCat(
      "norm ", static_cast<int>(config.norm), ", activation ", static_cast<int>(config.activation),
      ", rotary ", config.position == PositionKind::kRotary ? config.rotary_dim : 0, ", parallel ",
      config.parallel_block, ", shared norm ", config.shared_norm, ", biases ", config.qkv_bias,
      config.attention_bias, config.mlp_bias, ", norms of heads ", config.qk_norm, ", scaled ",
      config.rope_scaling.factor, ", key/value heads ", config.num_kv_heads, ", window ",
      config.window, " of layers ", absl::StrJoin(config.full_layers, ""), ", tied ", config.tied);
}

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size, uint64_t seed) {
  std::vector<int32_t> tokens(count);
  uint64_t state = seed * 2654435761u + 12345;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

double LargestDifference(const NamedValues& a, const NamedValues& b) {
  MEGASCALE_CHECK(a.size() == b.size());
  double largest = 0;
  for (const auto& [name, values] : a) {
    const std::vector<double>& others = b.at(name);
    MEGASCALE_CHECK(values.size() == others.size());
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i] - others[i]));
    }
  }
  return largest;
}

double LargestTensorDistance(const NamedValues& gradients, const NamedValues& expected) {
  MEGASCALE_CHECK(gradients.size() == expected.size());
  double all = 0;
  for (const auto& [name, values] : expected) {
    for (const double value : values) all += value * value;
  }
  double largest = 0;
  for (const auto& [name, values] : expected) {
    const std::vector<double>& others = gradients.at(name);
    MEGASCALE_CHECK(values.size() == others.size());
    double distance = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      distance += (others[i] - values[i]) * (others[i] - values[i]);
      norm += values[i] * values[i];
    }
    largest = std::max(largest, std::sqrt(distance / std::max(norm, 1e-6 * all)));
  }
  return largest;
}

TestPipeline::TestPipeline(const TestPipelineOptions& options, ops::Ops* ops)
    : options_(options), ops_(*ops) {
  const DType compute = ops->compute();
  const DType accumulation = AccumulationType(compute);
  const TensorPlace place = options.group != nullptr ? options.group->place() : TensorPlace();
  size_t bytes = 0;
  for (int i = 0; i < options.num_chunks; ++i) {
    layouts_.emplace_back(options.config, *MakeChunkRange(options.config, options.num_chunks, i),
                          place);
    const int64_t elements = layouts_.back().num_elements();
    bytes += Arena::BytesFor(compute, elements) + 3 * Arena::BytesFor(accumulation, elements);
  }
  const bool borrows = options.config.tied && options.num_chunks > 1;
  const int64_t borrowed = borrows ? EmbeddingElements(options.config, place.size) : 0;
  arena_ = *Arena::Create(bytes + Arena::BytesFor(accumulation, borrowed));
  if (borrows) head_gradient_ = arena_.Allocate(accumulation, borrowed);
  for (int i = 0; i < options.num_chunks; ++i) {
    const int64_t elements = layouts_[i].num_elements();
    parameters_.push_back(
        {arena_.Allocate(compute, elements), arena_.Allocate(accumulation, elements)});
    other_gradients_.push_back(arena_.Allocate(accumulation, elements));
    FillParameters(options.config, layouts_[i], ops, parameters_[i].weights);
    ChunkOptions chunk{.config = options.config,
                       .range = *MakeChunkRange(options.config, options.num_chunks, i),
                       .micro_batch = options.micro_batch,
                       .seq = options.seq,
                       .num_slots = options.num_slots,
                       .compute = compute,
                       .split_backward = options.split_backward,
                       .recompute = options.recompute,
                       .within_documents = options.end_token >= 0,
                       .tensor = place};
    if (options.early_gradients) {
      parameters_[i].early_gradients =
          arena_.Allocate(accumulation, TransformerChunk::EarlyElements(chunk));
    }
    if (BorrowsEmbedding(options.config, chunk.range)) {
      parameters_[i].head_weight = WeightsOf(kEmbedding);
      parameters_[i].head_gradient = head_gradient_;
    }
    auto created = TransformerChunk::Create(chunk, ops, parameters_[i], options.group);
    MEGASCALE_CHECK_MSG(created.ok(), created.status().message());
    chunks_.push_back(*std::move(created));
  }
}

void TestPipeline::UseOtherGradients() {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    std::swap(parameters_[i].gradients, other_gradients_[i]);
    chunks_[i]->AddGradientsTo(parameters_[i].gradients);
  }
}

void TestPipeline::Fill(int slot, const std::vector<int32_t>& tokens) {
  const int64_t seq = options_.seq;
  MEGASCALE_CHECK(static_cast<int64_t>(tokens.size()) == options_.micro_batch * (seq + 1));
  int32_t* inputs = chunks_.front()->tokens(slot).as<int32_t>();
  int32_t* targets = chunks_.back()->targets(slot).as<int32_t>();
  for (int64_t sample = 0; sample < options_.micro_batch; ++sample) {
    const int32_t* row = tokens.data() + sample * (seq + 1);
    std::copy(row, row + seq, inputs + sample * seq);
    std::copy(row + 1, row + seq + 1, targets + sample * seq);
    if (options_.end_token < 0) continue;
    for (const auto& chunk : chunks_) {
      int32_t* begins = chunk->document_begins(slot).as<int32_t>() + sample * seq;
      int32_t begin = 0;
      for (int32_t t = 0; t < seq; ++t) {
        begins[t] = begin;
        if (row[t] == options_.end_token) begin = t + 1;
      }
    }
  }
}

void TestPipeline::Forward(int slot, const std::vector<int32_t>& tokens, double gradient_scale) {
  Fill(slot, tokens);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i > 0) Copy(chunks_[i - 1]->output(slot), chunks_[i]->input(slot));
    chunks_[i]->Forward(slot, {gradient_scale, {&loss_, DType::kF64, 1}});
  }
}

void TestPipeline::Backward(int slot) {
  for (size_t i = chunks_.size(); i-- > 0;) {
    if (i + 1 < chunks_.size()) Copy(chunks_[i + 1]->gradient(slot), chunks_[i]->gradient(slot));
    if (options_.split_backward) {
      chunks_[i]->BackwardInput(slot);
    } else {
      chunks_[i]->Backward(slot);
    }
  }
}

double TestPipeline::Evaluate(const std::vector<int32_t>& tokens, int64_t batch) {
  double loss = 0;
  Fill(0, tokens);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i > 0) Copy(chunks_[i - 1]->output(0), chunks_[i]->input(0));
    chunks_[i]->Evaluate(0, batch, {&loss, DType::kF64, 1});
  }
  return loss;
}

std::vector<double> TestPipeline::Logits(std::vector<int32_t> tokens) {
  MEGASCALE_CHECK(chunks_.size() == 1);
  return AsDoubles(
      chunks_[0]->Logits({tokens.data(), DType::kI32, static_cast<int64_t>(tokens.size())}));
}

NamedValues TestPipeline::Gradients() const {
  NamedValues gradients;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const std::vector<double> flat = AsDoubles(parameters_[i].gradients);
    for (const Parameter& parameter : layouts_[i].parameters()) {
      const auto begin = flat.begin() + parameter.offset;
      gradients[parameter.name].assign(begin, begin + parameter.size);
    }
  }
  if (!head_gradient_) return gradients;
  const std::vector<double> of_head = AsDoubles(head_gradient_);
  for (size_t i = 0; i < of_head.size(); ++i) gradients[kEmbedding][i] += of_head[i];
  return gradients;
}

Vector TestPipeline::WeightsOf(const std::string& name) {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const int index = layouts_[i].Find(name);
    if (index < 0) continue;
    const Parameter& parameter = layouts_[i].parameters()[index];
    const Vector& weights = parameters_[i].weights;
    return {weights.as<std::byte>() + parameter.offset * SizeOf(weights.dtype), weights.dtype,
            parameter.size};
  }
  MEGASCALE_CHECK_MSG(false, name);
  return {};
}

double* TestPipeline::Weights(const std::string& name) { return WeightsOf(name).as<double>(); }

void TestPipeline::SetWeights(const std::string& name, const std::vector<double>& values) {
  const Vector weights = WeightsOf(name);
  MEGASCALE_CHECK_MSG(weights.size == static_cast<int64_t>(values.size()), name);
  for (int64_t i = 0; i < weights.size; ++i) {
    if (weights.dtype == DType::kF64) {
      weights.as<double>()[i] = values[i];
    } else if (weights.dtype == DType::kF32) {
      weights.as<float>()[i] = static_cast<float>(values[i]);
    } else {
      weights.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(values[i]));
    }
  }
}

std::vector<Parameter> TestPipeline::Parameters() const {
  std::vector<Parameter> parameters;
  for (const ChunkLayout& layout : layouts_) {
    parameters.insert(parameters.end(), layout.parameters().begin(), layout.parameters().end());
  }
  return parameters;
}

}  // namespace megascale::model
