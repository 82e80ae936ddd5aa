#include "runtime/model/initialize.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace megascale::model {
namespace {

using tensor::DType;
using Tensors = std::map<std::string, std::vector<float>>;

constexpr uint64_t kSeed = 17;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.num_layers = 4;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 12;
  config.intermediate_size = 96;
  config.max_positions = 9;
  return config;
}

// All parameters by name, made in `num_chunks` chunks of `num_shards` shards each.
Tensors Initialized(const ModelConfig& config, int num_chunks, int num_shards) {
  Tensors tensors;
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const ChunkLayout layout(config, *MakeChunkRange(config, num_chunks, chunk));
    for (int shard = 0; shard < num_shards; ++shard) {
      const FlatRange range =
          SplitEvenly({0, layout.padded_elements(num_shards)}, num_shards, shard);
      std::vector<float> master(range.count, -1.0f);
      InitializeParameters(config, layout, {.seed = kSeed}, range.begin,
                           tensor::HostVector::Of(absl::MakeSpan(master)));
      for (const ParameterSlice& slice : layout.SlicesOf(range)) {
        const Parameter& parameter = layout.parameters()[slice.parameter_index];
        const auto first = master.begin() + (parameter.offset + slice.begin - range.begin);
        auto& values = tensors[parameter.name];
        values.insert(values.end(), first, first + slice.count);
      }
    }
  }
  return tensors;
}

// The same assembled from `tensor_size` tensor ranks' parts.
Tensors InitializedByTensorRanks(const ModelConfig& config, int tensor_size) {
  Tensors tensors;
  for (int index = 0; index < tensor_size; ++index) {
    const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0), {tensor_size, index});
    std::vector<float> master(layout.num_elements(), -1.0f);
    InitializeParameters(config, layout, {.seed = kSeed}, 0,
                         tensor::HostVector::Of(absl::MakeSpan(master)));
    for (const ParameterSlice& slice : layout.SlicesOf({0, layout.num_elements()})) {
      const Parameter& parameter = layout.parameters()[slice.parameter_index];
      std::vector<float>& values = tensors[parameter.name];
      int64_t elements = 1;
      for (const int64_t dim : parameter.global_shape) elements *= dim;
      values.resize(elements, -1.0f);
      for (int64_t i = 0; i < slice.count; ++i) {
        values[GlobalIndex(parameter, parameter.boxes[slice.box_index], slice.begin_in_box + i)] =
            master[parameter.offset + slice.begin + i];
      }
    }
  }
  return tensors;
}

double StandardDeviation(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const double mean = sum / values.size();
  return std::sqrt(squares / values.size() - mean * mean);
}

TEST(InitializeParameters, DoesNotDependOnChunksAndShards) {
  const ModelConfig config = SmallConfig();
  const Tensors whole = Initialized(config, 1, 1);
  EXPECT_EQ(whole, Initialized(config, 1, 3));
  EXPECT_EQ(whole, Initialized(config, 2, 1));
  EXPECT_EQ(whole, Initialized(config, 4, 5));
}

TEST(InitializeParameters, DoesNotDependOnTensorRanks) {
  ModelConfig config = SmallConfig();
  config.vocab_size = 52;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 3;
  config.activation = ops::ActivationKind::kSwiGlu;
  const Tensors whole = Initialized(config, 1, 1);
  EXPECT_EQ(whole, InitializedByTensorRanks(config, 2));
  EXPECT_EQ(whole, InitializedByTensorRanks(config, 4));
}

TEST(InitializeParameters, HasTheAskedForDistribution) {
  const Tensors tensors = Initialized(SmallConfig(), 1, 1);
  EXPECT_NEAR(StandardDeviation(tensors.at("lm_head.weight")), 0.02, 0.001);
  EXPECT_NEAR(StandardDeviation(tensors.at("model.layers.1.mlp.up.weight")), 0.02, 0.001);
  const double residual = 0.02 / std::sqrt(8.0);
  EXPECT_NEAR(StandardDeviation(tensors.at("model.layers.1.mlp.down.weight")), residual, 0.0005);
  EXPECT_NEAR(StandardDeviation(tensors.at("model.layers.2.attn.out.weight")), residual, 0.0005);
  EXPECT_NE(tensors.at("model.layers.0.mlp.up.weight"), tensors.at("model.layers.1.mlp.up.weight"));
  for (const float value : tensors.at("model.layers.0.input_norm.weight")) EXPECT_EQ(value, 1.0f);
  for (const float value : tensors.at("model.layers.0.input_norm.bias")) EXPECT_EQ(value, 0.0f);
  for (const float value : tensors.at("model.layers.0.mlp.up.bias")) EXPECT_EQ(value, 0.0f);
}

TEST(InitializeParameters, Float64HoldsTheValuesOfFloat32AndPaddingIsZero) {
  const ModelConfig config = SmallConfig();
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  const int64_t padded = layout.padded_elements(7);
  std::vector<float> single(padded, -1.0f);
  std::vector<double> twice(padded, -1.0);
  InitializeParameters(config, layout, {.seed = kSeed}, 0,
                       tensor::HostVector::Of(absl::MakeSpan(single)));
  InitializeParameters(config, layout, {.seed = kSeed}, 0,
                       tensor::HostVector::Of(absl::MakeSpan(twice)));
  for (int64_t i = 0; i < padded; ++i) ASSERT_EQ(twice[i], single[i]);
  for (int64_t i = layout.num_elements(); i < padded; ++i) ASSERT_EQ(single[i], 0.0f);
}

TEST(InitializeParameters, DoesNotDependOnThreadsAndShowsThatItGoesOn) {
  ModelConfig config = SmallConfig();
  config.vocab_size = 70001;  // the two tables have over 3 blocks
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  const int64_t size = layout.num_elements() - 1;  // begins at an odd element
  std::vector<float> alone(size), together(size);
  InitializeParameters(config, layout, {.seed = kSeed}, 1,
                       tensor::HostVector::Of(absl::MakeSpan(alone)));
  std::atomic<int> num_calls = 0;
  std::atomic<int64_t> num_made = 0;
  const auto on_progress = [&](int64_t num_elements) {
    ++num_calls;
    num_made += num_elements;
  };
  InitializeParameters(config, layout,
                       {.seed = kSeed, .num_threads = 3, .on_progress = on_progress}, 1,
                       tensor::HostVector::Of(absl::MakeSpan(together)));
  EXPECT_EQ(alone, together);
  EXPECT_EQ(num_made, size);
  EXPECT_EQ(num_calls, (size + (1 << 20) - 1) >> 20);
}

// Pins the generator: a change here changes every job's weights.
TEST(InitializeParameters, KeepsItsValues) {
  const std::vector<float> weights = Initialized(SmallConfig(), 1, 1).at("lm_head.weight");
  EXPECT_FLOAT_EQ(weights[0], 0.015025886f);
  EXPECT_FLOAT_EQ(weights[1], -0.035402946f);
  EXPECT_FLOAT_EQ(weights[1000], -0.026548279f);
}

}  // namespace
}  // namespace megascale::model
