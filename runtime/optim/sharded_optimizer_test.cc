#include "runtime/optim/sharded_optimizer.h"

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

OptimizerShard OptionsOf(int num_shards, int shard_index) {
  const model::ModelConfig config = SmallConfig();
  return {config, *model::MakeChunkRange(config, 1, 0), num_shards, shard_index};
}

job::v1::OptimizerSpec Spec() {
  job::v1::OptimizerSpec spec;
  spec.set_type(job::v1::OPTIMIZER_TYPE_ADAMW);
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
    auto optimizer = *ShardedOptimizer::Create(Spec(), OptionsOf(num_shards, shard), ops);
    optimizer->Initialize(kSeed);
    const int64_t count = optimizer->range().count;
    const DType accumulation = AccumulationType(ops->compute());
    auto arena = *tensor::Arena::Create(tensor::Arena::BytesFor(accumulation, count) +
                                        tensor::Arena::BytesFor(ops->compute(), count));
    const Vector grad = arena.Allocate(accumulation, count);
    const Vector weights = arena.Allocate(ops->compute(), count);
    for (int step = 1; step <= kSteps; ++step) {
      FillGradients(grad, optimizer->range(), step);
      optimizer->Step({.grad = grad,
                       .compute_copy = weights,
                       .clip_factor = kClip,
                       .lr = Rate(step),
                       .step = step});
    }
    int64_t valid = 0;
    for (const StateSlice& slice : optimizer->State()) {
      std::vector<double>& values = trained.state[slice.name];
      EXPECT_EQ(static_cast<int64_t>(values.size()), slice.begin) << slice.name;
      for (int64_t i = 0; i < slice.data.size; ++i) values.push_back(Element(slice.data, i));
      if (slice.name.find("optimizer.") == std::string::npos) valid += slice.data.size;
    }
    for (int64_t i = 0; i < valid; ++i) trained.weights.push_back(Element(weights, i));
  }
  return trained;
}

void ExpectShardsMakeNoDifference(ops::Ops* ops) {
  const Trained whole = Train(ops, 1);
  for (const int num_shards : {2, 3, 50}) {
    const Trained sharded = Train(ops, num_shards);
    EXPECT_EQ(sharded.state, whole.state) << num_shards;
    EXPECT_EQ(sharded.weights, whole.weights) << num_shards;
  }
}

TEST(ShardedOptimizer, ShardsTogetherEqualTheWholeBitForBit) {
  ExpectShardsMakeNoDifference(ops::MakeReferenceOps().get());
}

TEST(ShardedOptimizer, ShardsTogetherEqualTheWholeBitForBitOnTheFastCpuOperators) {
  ExpectShardsMakeNoDifference(ops::MakeCpuOps(DType::kF32, 1).get());
  ExpectShardsMakeNoDifference(ops::MakeCpuOps(DType::kF32, 2).get());
  ExpectShardsMakeNoDifference(ops::MakeCpuOps(DType::kBF16, 1).get());
}

TEST(ShardedOptimizer, SumOfSquaresLeavesPaddingOut) {
  const auto ops = ops::MakeReferenceOps();
  double total = 0;
  int64_t elements = 0;
  for (int shard = 0; shard < 50; ++shard) {
    auto optimizer = *ShardedOptimizer::Create(Spec(), OptionsOf(50, shard), ops.get());
    std::vector<double> grad(optimizer->range().count, 2.0);
    total += optimizer->SumOfSquares({grad.data(), DType::kF64, optimizer->range().count});
    for (const StateSlice& slice : optimizer->State()) elements += slice.data.size;
  }
  EXPECT_EQ(total, 4.0 * elements / 3);
}

void ExpectRestoredStateGoesOn(const job::v1::OptimizerSpec& spec) {
  const auto ops = ops::MakeReferenceOps();
  auto original = *ShardedOptimizer::Create(spec, OptionsOf(1, 0), ops.get());
  auto restored = *ShardedOptimizer::Create(spec, OptionsOf(1, 0), ops.get());
  original->Initialize(kSeed);
  const int64_t count = original->range().count;
  std::vector<double> grad(count), weights(count), restored_weights(count);
  const Vector grad_view{grad.data(), DType::kF64, count};
  std::vector<double> sums(original->num_trust_sums());
  const auto step = [&](ShardedOptimizer& optimizer, std::vector<double>& copy, int number) {
    FillGradients(grad_view, optimizer.range(), number);
    const StepArgs args = {.grad = grad_view,
                           .compute_copy = {copy.data(), DType::kF64, count},
                           .lr = 0.01,
                           .step = number,
                           .trust_sums = sums};
    if (!sums.empty()) optimizer.MakeUpdate(args, absl::MakeSpan(sums));
    optimizer.Step(args);
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

TEST(ShardedOptimizer, RestoredStateGoesOnWithTheSameBits) {
  job::v1::OptimizerSpec spec = Spec();
  ExpectRestoredStateGoesOn(spec);
  spec.set_type(job::v1::OPTIMIZER_TYPE_LAMB);
  ExpectRestoredStateGoesOn(spec);
}

TEST(ClipFactor, ScalesOnlyNormsAboveTheLimit) {
  EXPECT_EQ(ClipFactor(4.0, 2.0), 1.0);
  EXPECT_EQ(ClipFactor(16.0, 2.0), 0.5);
  EXPECT_EQ(ClipFactor(16.0, 0.0), 1.0);
  EXPECT_EQ(ClipFactor(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace megascale::optim
