#include "runtime/optim/sharded_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "proto/job.pb.h"
#include "runtime/ops/testing/test_numbers.h"
#include "runtime/optim/testing/test_shard_memory.h"

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

OptimizerShard OptionsOf(int num_shards, int shard_index, int64_t bucket_size = 0) {
  const model::ModelConfig config = SmallConfig();
  return {.config = config,
          .range = *model::MakeChunkRange(config, 1, 0),
          .num_shards = num_shards,
          .shard_index = shard_index,
          .bucket_size = bucket_size};
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
  NamedValues weights;  // the compute copies
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

void Set(const Vector& vector, int64_t i, double value) {
  if (vector.dtype == DType::kF64) {
    vector.as<double>()[i] = value;
  } else {
    vector.as<float>()[i] = static_cast<float>(value);
  }
}

void FillGradients(const Vector& grad, const model::FlatRange& range, int step) {
  for (int64_t i = 0; i < range.count; ++i) Set(grad, i, Gradient(range.begin + i, step));
}

// Returns elements of `vector`, which begins with the whole tensor's element `begin`.
void Put(const Vector& vector, int64_t begin, std::vector<double>* tensor) {
  const auto end = static_cast<size_t>(begin + vector.size);
  if (tensor->size() < end) tensor->resize(end, std::nan(""));
  for (int64_t i = 0; i < vector.size; ++i) {
    double& element = (*tensor)[static_cast<size_t>(begin + i)];
    EXPECT_TRUE(std::isnan(element)) << "two shards have it";
    element = Element(vector, i);
  }
}

Trained Train(ops::Ops* ops, int num_shards, int64_t bucket_size) {
  Trained trained;
  for (int shard = 0; shard < num_shards; ++shard) {
    const OptimizerShard options = OptionsOf(num_shards, shard, bucket_size);
    const ShardMemory grad(options.ranges(), AccumulationType(ops->compute()));
    const ShardMemory weights(options.ranges(), ops->compute());
    auto optimizer = *ShardedOptimizer::Create(Spec(), options, weights.parts, ops);
    Initialize(*optimizer, {.seed = kSeed});
    for (int step = 1; step <= kSteps; ++step) {
      for (size_t bucket = 0; bucket < grad.parts.size(); ++bucket) {
        FillGradients(grad.parts[bucket], optimizer->ranges()[bucket], step);
      }
      ops::TestStepNumbers numbers(Rate(step), step, kClip);
      optimizer->Step({.grad = grad.parts, .step_numbers = numbers.vector()});
    }
    for (const StateSlice& slice : optimizer->State()) {
      Put(slice.data, slice.begin, &trained.state[slice.name]);
    }
    const model::ChunkLayout layout = optimizer->shard().layout();
    for (size_t bucket = 0; bucket < weights.parts.size(); ++bucket) {
      const model::FlatRange& range = optimizer->ranges()[bucket];
      for (const model::ParameterSlice& slice : layout.SlicesOf(range)) {
        const model::Parameter& parameter = layout.parameters()[slice.parameter_index];
        const int64_t begin = parameter.offset + slice.begin - range.begin;
        const Vector& part = weights.parts[bucket];
        Put({part.as<char>() + begin * static_cast<int64_t>(SizeOf(part.dtype)), part.dtype,
             slice.count},
            slice.begin, &trained.weights[parameter.name]);
      }
    }
  }
  return trained;
}

void ExpectShardsAndBucketsMakeNoDifference(ops::Ops* ops) {
  const Trained whole = Train(ops, 1, 0);
  for (const int num_shards : {1, 2, 3, 50}) {
    for (const int64_t bucket_size : {0, 1, 500, 900}) {
      const Trained sharded = Train(ops, num_shards, bucket_size);
      EXPECT_EQ(sharded.state, whole.state) << num_shards << ", " << bucket_size;
      EXPECT_EQ(sharded.weights, whole.weights) << num_shards << ", " << bucket_size;
    }
  }
}

TEST(ShardedOptimizer, ShardsTogetherEqualTheWholeBitForBit) {
  ExpectShardsAndBucketsMakeNoDifference(ops::MakeReferenceOps().get());
}

TEST(ShardedOptimizer, ShardsTogetherEqualTheWholeBitForBitOnTheFastCpuOperators) {
  ExpectShardsAndBucketsMakeNoDifference(ops::MakeCpuOps(DType::kF32, 1).get());
  ExpectShardsAndBucketsMakeNoDifference(ops::MakeCpuOps(DType::kF32, 2).get());
  ExpectShardsAndBucketsMakeNoDifference(ops::MakeCpuOps(DType::kBF16, 1).get());
}

// Takes steps of a model whose tensors are large enough for several threads; returns the sums of
// squares and the bits of the weights.
std::pair<std::vector<double>, std::vector<char>> TrainWide(const job::v1::OptimizerSpec& spec,
                                                            DType compute, int num_threads) {
  const auto ops = ops::MakeCpuOps(compute, num_threads);
  OptimizerShard shard = OptionsOf(1, 0);
  shard.config.vocab_size = 1031;
  shard.config.hidden_size = 130;
  shard.config.intermediate_size = 517;
  shard.config.head_dim = 65;
  const ShardMemory grad(shard.ranges(), DType::kF32);
  const ShardMemory weights(shard.ranges(), compute);
  auto optimizer = *ShardedOptimizer::Create(spec, shard, weights.parts, ops.get());
  Initialize(*optimizer, {.seed = kSeed});
  std::vector<double> squares;
  std::vector<double> sums(optimizer->num_trust_sums());
  for (int step = 1; step <= kSteps; ++step) {
    FillGradients(grad.parts[0], optimizer->ranges()[0], step);
    squares.push_back(0);
    optimizer->AddSumOfSquares(grad.parts, ops::Number(&squares.back()));
    ops::TestStepNumbers numbers(Rate(step), step, ops::ClipFactor(squares.back(), 1.0));
    const StepArgs args = {
        .grad = grad.parts, .step_numbers = numbers.vector(), .trust_sums = ops::Numbers(&sums)};
    if (!sums.empty()) optimizer->MakeUpdate(args, ops::Numbers(&sums));
    squares.insert(squares.end(), sums.begin(), sums.end());
    optimizer->Step(args);
  }
  const Vector& part = weights.parts[0];
  const char* bytes = part.as<char>();
  return {squares, {bytes, bytes + part.size * SizeOf(part.dtype)}};
}

TEST(ShardedOptimizer, TheNumberOfThreadsLeavesTheBits) {
  job::v1::OptimizerSpec spec = Spec();
  for (const auto type : {job::v1::OPTIMIZER_TYPE_ADAMW, job::v1::OPTIMIZER_TYPE_LAMB}) {
    spec.set_type(type);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const auto one = TrainWide(spec, compute, 1);
      for (const int num_threads : {2, 3}) {
        EXPECT_TRUE(TrainWide(spec, compute, num_threads) == one) << type << ", " << num_threads;
      }
    }
  }
}

TEST(ShardedOptimizer, SumOfSquaresLeavesPaddingOut) {
  const auto ops = ops::MakeReferenceOps();
  for (const int64_t bucket_size : {0, 1}) {
    double total = 0;
    int64_t elements = 0;
    for (int shard = 0; shard < 50; ++shard) {
      const OptimizerShard options = OptionsOf(50, shard, bucket_size);
      const ShardMemory grad(options.ranges(), DType::kF64);
      const ShardMemory weights(options.ranges(), DType::kF64);
      auto optimizer = *ShardedOptimizer::Create(Spec(), options, weights.parts, ops.get());
      for (const Vector& part : grad.parts) {
        for (int64_t i = 0; i < part.size; ++i) Set(part, i, 2.0);
      }
      optimizer->AddSumOfSquares(grad.parts, ops::Number(&total));
      for (const StateSlice& slice : optimizer->State()) elements += slice.data.size;
    }
    EXPECT_EQ(total, 4.0 * elements / 3);
  }
}

void ExpectRestoredStateGoesOn(ops::Ops* ops, const job::v1::OptimizerSpec& spec,
                               int64_t bucket_size) {
  const OptimizerShard shard = OptionsOf(1, 0, bucket_size);
  const ShardMemory grad(shard.ranges(), AccumulationType(ops->compute()));
  const ShardMemory weights(shard.ranges(), ops->compute());
  const ShardMemory restored_weights(shard.ranges(), ops->compute());
  auto original = *ShardedOptimizer::Create(spec, shard, weights.parts, ops);
  auto restored = *ShardedOptimizer::Create(spec, shard, restored_weights.parts, ops);
  Initialize(*original, {.seed = kSeed});
  std::vector<double> sums(original->num_trust_sums());
  const auto step = [&](ShardedOptimizer& optimizer, int number) {
    for (size_t bucket = 0; bucket < grad.parts.size(); ++bucket) {
      FillGradients(grad.parts[bucket], optimizer.ranges()[bucket], number);
    }
    ops::TestStepNumbers numbers(0.01, number);
    const StepArgs args = {
        .grad = grad.parts, .step_numbers = numbers.vector(), .trust_sums = ops::Numbers(&sums)};
    if (!sums.empty()) optimizer.MakeUpdate(args, ops::Numbers(&sums));
    optimizer.Step(args);
  };
  const auto expect_same_weights = [&] {
    for (size_t bucket = 0; bucket < weights.parts.size(); ++bucket) {
      const Vector& part = weights.parts[bucket];
      const Vector& other = restored_weights.parts[bucket];
      EXPECT_EQ(std::memcmp(part.data, other.data, part.size * SizeOf(part.dtype)), 0) << bucket;
    }
  };
  step(*original, 1);

  const std::vector<StateSlice> from = original->State();
  const std::vector<StateSlice> to = restored->State();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].name, to[i].name);
    std::memcpy(to[i].data.data, from[i].data.data, from[i].data.size * SizeOf(from[i].data.dtype));
  }
  restored->PublishWeights();
  expect_same_weights();

  step(*original, 2);
  step(*restored, 2);
  expect_same_weights();
}

TEST(ShardedOptimizer, RestoredStateGoesOnWithTheSameBits) {
  job::v1::OptimizerSpec spec = Spec();
  // Weights that are the master weights, and weights that are rounded from them.
  const std::unique_ptr<ops::Ops> all_ops[] = {ops::MakeReferenceOps(),
                                               ops::MakeCpuOps(DType::kBF16, 1)};
  for (const auto& ops : all_ops) {
    for (const int64_t bucket_size : {0, 1}) {
      spec.set_type(job::v1::OPTIMIZER_TYPE_ADAMW);
      ExpectRestoredStateGoesOn(ops.get(), spec, bucket_size);
      spec.set_type(job::v1::OPTIMIZER_TYPE_LAMB);
      ExpectRestoredStateGoesOn(ops.get(), spec, bucket_size);
    }
  }
}

TEST(ShardedOptimizer, WeightsThatAreNotRoundedAreTheMasterWeights) {
  const OptimizerShard shard = OptionsOf(2, 1, 500);
  int64_t bytes = 0;
  for (const model::FlatRange& range : shard.ranges()) {
    bytes += static_cast<int64_t>(tensor::Arena::BytesFor(DType::kF32, range.count));
  }
  EXPECT_EQ(ShardedOptimizer::StateBytes(shard, DType::kF32), 2 * bytes);
  EXPECT_EQ(ShardedOptimizer::StateBytes(shard, DType::kBF16), 3 * bytes);

  const auto ops = ops::MakeCpuOps(DType::kF32, 1);
  const ShardMemory weights(shard.ranges(), DType::kF32);
  const auto optimizer = *ShardedOptimizer::Create(Spec(), shard, weights.parts, ops.get());
  Initialize(*optimizer, {.seed = kSeed});
  const std::vector<StateSlice> state = optimizer->State();
  for (size_t i = 0; i < state.size() / 3; ++i) {
    const auto is_around = [&](const Vector& part) {
      return state[i].data.as<float>() >= part.as<float>() &&
             state[i].data.as<float>() + state[i].data.size <= part.as<float>() + part.size;
    };
    EXPECT_TRUE(std::any_of(weights.parts.begin(), weights.parts.end(), is_around))
        << state[i].name;
  }
}

}  // namespace
}  // namespace megascale::optim
