#include "runtime/optim/sharded_adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "proto/job.pb.h"

namespace megascale::optim {
namespace {

using tensor::DType;
using tensor::Vector;
using NamedValues = std::map<std::string, std::vector<double>>;

constexpr uint64_t kSeed = 23;
constexpr int kSteps = 3;
constexpr double kClip = 0.75;

model::ModelConfig SmallConfig() {
  model::ModelConfig config;
  config.vocab_size = 17;
  config.hidden_size = 10;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 5;
  config.intermediate_size = 21;
  config.max_positions = 3;
  return config;
}

ShardedAdamWOptions OptionsOf(int num_shards, int shard_index) {
  const model::ModelConfig config = SmallConfig();
  return {config, *model::MakeChunkRange(config, 1, 0), num_shards, shard_index};
}

job::v1::OptimizerSpec Spec() {
  job::v1::OptimizerSpec spec;
  spec.set_beta1(0.8);
  spec.set_beta2(0.97);
  spec.set_eps(1e-6);
  spec.set_weight_decay(0.1);
  return spec;
}

double Rate(int step) { return 0.01 / step; }

// The gradient of flat element `index` at `step`.
float Gradient(int64_t index, int step) {
  return static_cast<float>(std::sin(0.7 * index + step) * (index % 5 == 0 ? 1e-3 : 1.0));
}

struct Trained {
  NamedValues state;
  std::vector<double> weights;  // the compute copies, shards one behind the other, no padding
};

template <typename T>
double Read(const Vector& vector, int64_t i) {
  return vector.as<T>()[i];
}

double Element(const Vector& vector, int64_t i) {
  switch (vector.dtype) {
    case DType::kF64:
      return Read<double>(vector, i);
    case DType::kBF16:
      return tensor::ToFloat(vector.as<tensor::BFloat16>()[i]);
    default:
      return Read<float>(vector, i);
  }
}

void FillGradients(const Vector& grad, const model::FlatRange& range, int step) {
  for (int64_t i = 0; i < range.count; ++i) {
    if (grad.dtype == DType::kF64) {
      grad.as<double>()[i] = Gradient(range.begin + i, step);
    } else {
      grad.as<float>()[i] = Gradient(range.begin + i, step);
    }
  }
}

Trained Train(ops::Ops* ops, int num_shards) {
  Trained trained;
  for (int shard = 0; shard < num_shards; ++shard) {
    auto adamw = *ShardedAdamW::Create(Spec(), OptionsOf(num_shards, shard), ops);
    adamw->Initialize(kSeed);
    const int64_t count = adamw->range().count;
    const DType accumulation = AccumulationType(ops->compute());
    auto arena = *tensor::Arena::Create(tensor::Arena::BytesFor(accumulation, count) +
                                        tensor::Arena::BytesFor(ops->compute(), count));
    const Vector grad = arena.Allocate(accumulation, count);
    const Vector weights = arena.Allocate(ops->compute(), count);
    for (int step = 1; step <= kSteps; ++step) {
      FillGradients(grad, adamw->range(), step);
      adamw->Step({.grad = grad,
                   .compute_copy = weights,
                   .clip_factor = kClip,
                   .lr = Rate(step),
                   .step = step});
    }
    int64_t valid = 0;
    for (const StateSlice& slice : adamw->State()) {
      std::vector<double>& values = trained.state[slice.name];
      EXPECT_EQ(static_cast<int64_t>(values.size()), slice.begin) << slice.name;
      for (int64_t i = 0; i < slice.data.size; ++i) values.push_back(Element(slice.data, i));
      if (slice.name.find("optimizer.") == std::string::npos) valid += slice.data.size;
    }
    for (int64_t i = 0; i < valid; ++i) trained.weights.push_back(Element(weights, i));
  }
  return trained;
}

// Algorithm 2 of Loshchilov and Hutter, 2019, for one element, with the decay scaled by the rate.
struct Reference {
  double weight = 0, first = 0, second = 0;

  void Step(double gradient, double decay, int step) {
    gradient *= kClip;
    first = 0.8 * first + 0.2 * gradient;
    second = 0.97 * second + 0.03 * gradient * gradient;
    const double corrected_first = first / (1 - std::pow(0.8, step));
    const double corrected_second = second / (1 - std::pow(0.97, step));
    weight -=
        Rate(step) * (corrected_first / (std::sqrt(corrected_second) + 1e-6) + decay * weight);
  }
};

TEST(ShardedAdamW, FollowsThePublishedFormulaAndDecaysMatricesOnly) {
  const auto ops = ops::MakeReferenceOps();
  const Trained trained = Train(ops.get(), 1);
  auto initial = *ShardedAdamW::Create(Spec(), OptionsOf(1, 0), ops.get());
  initial->Initialize(kSeed);
  int64_t flat = 0;
  for (const StateSlice& slice : initial->State()) {
    if (slice.name.find("optimizer.") == 0) continue;
    const double decay = slice.shape.size() == 2 ? 0.1 : 0.0;
    for (int64_t i = 0; i < slice.data.size; ++i, ++flat) {
      Reference reference{.weight = Element(slice.data, i)};
      for (int step = 1; step <= kSteps; ++step) reference.Step(Gradient(flat, step), decay, step);
      ASSERT_NEAR(trained.state.at(slice.name)[i], reference.weight, 1e-14) << slice.name;
      ASSERT_NEAR(trained.state.at("optimizer.exp_avg." + slice.name)[i], reference.first, 1e-14);
      ASSERT_NEAR(trained.state.at("optimizer.exp_avg_sq." + slice.name)[i], reference.second,
                  1e-14);
      ASSERT_EQ(trained.weights[flat], trained.state.at(slice.name)[i]);
    }
  }
}

void ExpectShardsMakeNoDifference(ops::Ops* ops) {
  const Trained whole = Train(ops, 1);
  for (const int num_shards : {2, 3, 50}) {
    const Trained sharded = Train(ops, num_shards);
    EXPECT_EQ(sharded.state, whole.state) << num_shards;
    EXPECT_EQ(sharded.weights, whole.weights) << num_shards;
  }
}

TEST(ShardedAdamW, ShardsTogetherEqualTheWholeBitForBit) {
  ExpectShardsMakeNoDifference(ops::MakeReferenceOps().get());
}

TEST(ShardedAdamW, ShardsTogetherEqualTheWholeBitForBitOnTheFastCpuOperators) {
  ExpectShardsMakeNoDifference(ops::MakeCpuOps(DType::kF32, 1).get());
  ExpectShardsMakeNoDifference(ops::MakeCpuOps(DType::kF32, 2).get());
  ExpectShardsMakeNoDifference(ops::MakeCpuOps(DType::kBF16, 1).get());
}

TEST(ShardedAdamW, SumOfSquaresLeavesPaddingOut) {
  const auto ops = ops::MakeReferenceOps();
  double total = 0;
  int64_t elements = 0;
  for (int shard = 0; shard < 50; ++shard) {
    auto adamw = *ShardedAdamW::Create(Spec(), OptionsOf(50, shard), ops.get());
    std::vector<double> grad(adamw->range().count, 2.0);
    total += adamw->SumOfSquares({grad.data(), DType::kF64, adamw->range().count});
    for (const StateSlice& slice : adamw->State()) elements += slice.data.size;
  }
  EXPECT_EQ(total, 4.0 * elements / 3);
}

TEST(ShardedAdamW, RestoredStateGoesOnWithTheSameBits) {
  const auto ops = ops::MakeReferenceOps();
  auto original = *ShardedAdamW::Create(Spec(), OptionsOf(2, 1), ops.get());
  auto restored = *ShardedAdamW::Create(Spec(), OptionsOf(2, 1), ops.get());
  original->Initialize(kSeed);
  const int64_t count = original->range().count;
  std::vector<double> grad(count), weights(count), restored_weights(count);
  const Vector grad_view{grad.data(), DType::kF64, count};
  const auto step = [&](ShardedAdamW& adamw, std::vector<double>& copy, int number) {
    FillGradients(grad_view, adamw.range(), number);
    adamw.Step({.grad = grad_view,
                .compute_copy = {copy.data(), DType::kF64, count},
                .lr = 0.01,
                .step = number});
  };
  step(*original, weights, 1);

  const std::vector<StateSlice> from = original->State();
  const std::vector<StateSlice> to = restored->State();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].name, to[i].name);
    std::memcpy(to[i].data.data, from[i].data.data, from[i].data.size * sizeof(double));
  }
  restored->CopyParametersOut({restored_weights.data(), DType::kF64, count});
  EXPECT_EQ(restored_weights, weights);

  step(*original, weights, 2);
  step(*restored, restored_weights, 2);
  EXPECT_EQ(restored_weights, weights);
}

TEST(ClipFactor, ScalesOnlyNormsAboveTheLimit) {
  EXPECT_EQ(ClipFactor(4.0, 2.0), 1.0);
  EXPECT_EQ(ClipFactor(16.0, 2.0), 0.5);
  EXPECT_EQ(ClipFactor(16.0, 0.0), 1.0);
  EXPECT_EQ(ClipFactor(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace megascale::optim
