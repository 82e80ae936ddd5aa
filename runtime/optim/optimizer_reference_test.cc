// LAMB and AdamW under every sharding, over data-parallel and tensor ranks, against the published
// formulas: plain loops in float64 over whole tensors, which know nothing of shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "proto/job.pb.h"
#include "runtime/ops/testing/test_numbers.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/optim/testing/test_shard_memory.h"

namespace megascale::optim {
namespace {

using tensor::DType;
using tensor::Vector;
using Values = std::vector<double>;

constexpr int kSteps = 10;
constexpr double kClip = 5;
constexpr double kRoundF32 = 0x1p-24;
// Tensors that have cases of their own in the tests.
constexpr char kZeroWeights[] = "model.layers.0.mlp.down.weight";
constexpr char kZeroGradient[] = "model.layers.1.attn.out.weight";

model::ModelConfig SmallConfig() {
  model::ModelConfig config;
  config.vocab_size = 18;
  config.hidden_size = 10;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 5;
  config.intermediate_size = 22;
  config.max_positions = 3;
  return config;
}

model::ChunkRange WholeModel() { return *model::MakeChunkRange(SmallConfig(), 1, 0); }

job::v1::OptimizerSpec Spec(job::v1::OptimizerType type, double weight_decay) {
  job::v1::OptimizerSpec spec;
  spec.set_type(type);
  spec.set_beta1(0.9);
  spec.set_beta2(0.98);
  spec.set_eps(1e-6);
  spec.set_weight_decay(weight_decay);
  return spec;
}

double At(const Vector& vector, int64_t i) {
  switch (vector.dtype) {
    case DType::kF64:
      return vector.as<double>()[i];
    case DType::kBF16:
      return tensor::ToFloat(vector.as<tensor::BFloat16>()[i]);
    default:
      return vector.as<float>()[i];
  }
}

void Set(const Vector& vector, int64_t i, double value) {
  if (vector.dtype == DType::kF64) {
    vector.as<double>()[i] = value;
  } else {
    vector.as<float>()[i] = static_cast<float>(value);
  }
}

// Returns gradients of the whole model, by tensor; fp32 holds them exactly. Tensors differ in
// scale.
std::map<std::string, Values> RandomGradients(int step) {
  std::mt19937 random(100 + step);
  std::map<std::string, Values> gradients;
  const model::ChunkLayout layout(SmallConfig(), WholeModel());
  double scale = 1;
  for (const model::Parameter& parameter : layout.parameters()) {
    Values& values = gradients[parameter.name];
    scale = scale < 1e-2 ? 1 : scale / 3;
    for (int64_t i = 0; i < parameter.size; ++i) {
      const double unit = static_cast<double>(random()) / 0x1p31 - 1;
      values.push_back(parameter.name == kZeroGradient ? 0 : static_cast<float>(unit * scale));
    }
  }
  return gradients;
}

// The formulas for one whole tensor.
struct ReferenceTensor {
  Values weights, first, second, update;
  bool is_matrix = false;
  double ratio = 1;

  void Step(const Values& gradient, const job::v1::OptimizerSpec& spec, double lr, int step) {
    const double decay = is_matrix ? spec.weight_decay() : 0;
    double weights_norm = 0, update_norm = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      first[i] = spec.beta1() * first[i] + (1 - spec.beta1()) * gradient[i];
      second[i] = spec.beta2() * second[i] + (1 - spec.beta2()) * gradient[i] * gradient[i];
      const double m = first[i] / (1 - std::pow(spec.beta1(), step));
      const double v = second[i] / (1 - std::pow(spec.beta2(), step));
      update[i] = m / (std::sqrt(v) + spec.eps()) + decay * weights[i];
      weights_norm += weights[i] * weights[i];
      update_norm += update[i] * update[i];
    }
    weights_norm = std::sqrt(weights_norm);
    update_norm = std::sqrt(update_norm);
    const bool scaled = spec.type() == job::v1::OPTIMIZER_TYPE_LAMB && is_matrix &&
                        weights_norm > 0 && update_norm > 0;
    ratio = scaled ? weights_norm / update_norm : 1;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= lr * ratio * update[i];
  }
};

struct Sharding {
  int data = 1;
  int tensor = 1;
  int64_t bucket_size = 0;
};

// The shards of the whole model, which step together as the ranks of a stage do.
class Shards {
 public:
  Shards(const job::v1::OptimizerSpec& spec, const Sharding& sharding, ops::Ops* ops)
      : spec_(spec), ops_(*ops) {
    for (int i = 0; i < sharding.data * sharding.tensor; ++i) {
      const model::TensorPlace place = {sharding.tensor, i % sharding.tensor};
      const OptimizerShard shard = {SmallConfig(),       WholeModel(), sharding.data,
                                    i / sharding.tensor, place,        sharding.bucket_size};
      EXPECT_EQ(shard.part_index(), i);
      EXPECT_EQ(shard.num_parts(), sharding.data * sharding.tensor);
      const std::vector<model::FlatRange> ranges = shard.ranges();
      gradients_.emplace_back(ranges, AccumulationType(ops->compute()));
      weights_.emplace_back(ranges, ops->compute());
      optimizers_.push_back(*ShardedOptimizer::Create(spec, shard, weights_.back().parts, ops));
      Initialize(*optimizers_.back(), {.seed = 23});
      for (const StateSlice& slice : optimizers_.back()->State()) {
        if (slice.name == kZeroWeights) ops_.FillZero(slice.data);
      }
      optimizers_.back()->PublishWeights();
    }
  }

  void Step(const std::map<std::string, Values>& gradients, double lr, int step) {
    double sum = 0;
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      Scatter(gradients, i);
      double squares = 0;
      optimizers_[i]->AddSumOfSquares(gradients_[i].parts, ops::Number(&squares));
      sum += squares;
    }
    const int num_sums = optimizers_[0]->num_trust_sums();
    Values sums(num_sums * optimizers_.size(), std::nan(""));
    ops::TestStepNumbers numbers(lr, step, ops::ClipFactor(sum, kClip));
    StepArgs args;
    args.step_numbers = numbers.vector(), args.trust_sums = ops::Numbers(&sums);
    for (size_t i = 0; num_sums > 0 && i < optimizers_.size(); ++i) {
      args.grad = gradients_[i].parts;
      optimizers_[i]->MakeUpdate(
          args, {&sums[i * num_sums], tensor::DType::kF64, static_cast<int64_t>(num_sums)});
    }
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      args.grad = gradients_[i].parts;
      num_sums > 0 ? optimizers_[i]->Step(args) : StepAdamW(args, i);
    }
  }

  // Returns the state by tensor, under the names that State gives. Checks that copies are equal.
  std::map<std::string, Values> State() const {
    std::map<std::string, Values> state;
    for (const auto& optimizer : optimizers_) {
      const model::ChunkLayout layout = optimizer->shard().layout();
      std::vector<model::ParameterSlice> slices;
      for (const model::FlatRange& range : optimizer->ranges()) {
        const auto of_bucket = layout.SlicesOf(range);
        slices.insert(slices.end(), of_bucket.begin(), of_bucket.end());
      }
      const std::vector<StateSlice> parts = optimizer->State();
      EXPECT_EQ(parts.size(), 3 * slices.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        Place(layout, slices[i % slices.size()], parts[i].data, 0, &state[parts[i].name]);
      }
    }
    return state;
  }

  // The updates of the last step, before they were added; and the weights that it published.
  std::map<std::string, Values> Updates() const { return Gather(gradients_); }
  std::map<std::string, Values> Weights() const { return Gather(weights_); }

 private:
  // Calls `each` with every slice of a shard, the vector that it is in, and where it begins there.
  template <typename Each>
  void ForEachSlice(const std::vector<Vector>& parts, size_t shard, const Each& each) const {
    const model::ChunkLayout layout = optimizers_[shard]->shard().layout();
    for (size_t bucket = 0; bucket < parts.size(); ++bucket) {
      const model::FlatRange& range = optimizers_[shard]->ranges()[bucket];
      for (const model::ParameterSlice& slice : layout.SlicesOf(range)) {
        const model::Parameter& parameter = layout.parameters()[slice.parameter_index];
        each(layout, slice, parts[bucket], parameter.offset + slice.begin - range.begin);
      }
    }
  }

  void Scatter(const std::map<std::string, Values>& gradients, size_t shard) {
    ForEachSlice(gradients_[shard].parts, shard,
                 [&](const model::ChunkLayout& layout, const model::ParameterSlice& slice,
                     const Vector& part, int64_t begin) {
                   const model::Parameter& parameter = layout.parameters()[slice.parameter_index];
                   const model::ParameterBox& box = parameter.boxes[slice.box_index];
                   const Values& values = gradients.at(parameter.name);
                   for (int64_t i = 0; i < slice.count; ++i) {
                     Set(part, begin + i,
                         values[GlobalIndex(parameter, box, slice.begin_in_box + i)]);
                   }
                 });
  }

  // AdamW adds its update while it computes it. So this computes the update separately, from a copy
  // of the state: if adding it gives the weights of the step to the bit, it is the update that the
  // step added. Leaves it in place of the gradients, as LAMB does.
  void StepAdamW(const StepArgs& step, size_t shard) {
    const std::vector<StateSlice> state = optimizers_[shard]->State();
    const size_t num_slices = state.size() / 3;
    std::deque<Values> memory;
    const auto copy_of = [&memory](const Vector& vector) {
      memory.emplace_back(vector.size);  // enough, of any type
      return CopyInto(memory.back().data(), vector);
    };
    std::vector<ops::AdamWArgs> apart;
    ForEachSlice(
        gradients_[shard].parts, shard,
        [&](const model::ChunkLayout& layout, const model::ParameterSlice& slice,
            const Vector& part, int64_t begin) {
          const bool decays = layout.parameters()[slice.parameter_index].weight_decay;
          const size_t i = apart.size();
          ops::AdamWArgs args;
          args.master = copy_of(state[i].data);
          args.exp_avg = copy_of(state[num_slices + i].data);
          args.exp_avg_sq = copy_of(state[2 * num_slices + i].data);
          args.grad = {part.as<char>() + begin * SizeOf(part.dtype), part.dtype, slice.count};
          args.update = copy_of(args.grad);
          args.step_numbers = step.step_numbers;
          args.beta1 = spec_.beta1(), args.beta2 = spec_.beta2(), args.eps = spec_.eps();
          args.weight_decay = decays ? spec_.weight_decay() : 0;
          ops_.AdamW({&args, 1});
          const double lr = step.step_numbers.as<double>()[ops::kLearningRate];
          ops_.AddScaled(-lr, args.update, args.master);
          apart.push_back(args);
        });
    EXPECT_EQ(apart.size(), num_slices);
    optimizers_[shard]->Step(step);
    for (size_t i = 0; i < apart.size(); ++i) {
      for (int64_t j = 0; j < apart[i].master.size; ++j) {
        ASSERT_EQ(At(state[i].data, j), At(apart[i].master, j)) << state[i].name << " at " << j;
      }
      CopyInto(apart[i].grad.data, apart[i].update);
    }
  }

  static Vector CopyInto(void* memory, const Vector& vector) {
    std::memcpy(memory, vector.data, static_cast<size_t>(vector.size) * SizeOf(vector.dtype));
    return {memory, vector.dtype, vector.size};
  }

  // Copies the elements of `slice`, which are in `part` from `begin` on, to their place in the
  // tensor.
  static void Place(const model::ChunkLayout& layout, const model::ParameterSlice& slice,
                    const Vector& part, int64_t begin, Values* values) {
    const model::Parameter& parameter = layout.parameters()[slice.parameter_index];
    const model::ParameterBox& box = parameter.boxes[slice.box_index];
    const int64_t size =
        std::accumulate(parameter.global_shape.begin(), parameter.global_shape.end(), int64_t{1},
                        std::multiplies<>());
    values->resize(size, std::nan(""));
    for (int64_t i = 0; i < slice.count; ++i) {
      double& value = (*values)[GlobalIndex(parameter, box, slice.begin_in_box + i)];
      EXPECT_TRUE(std::isnan(value) || (parameter.replicated && value == At(part, begin + i)))
          << parameter.name;
      value = At(part, begin + i);
    }
  }

  std::map<std::string, Values> Gather(const std::vector<ShardMemory>& shards) const {
    std::map<std::string, Values> tensors;
    for (size_t shard = 0; shard < shards.size(); ++shard) {
      ForEachSlice(shards[shard].parts, shard,
                   [&](const model::ChunkLayout& layout, const model::ParameterSlice& slice,
                       const Vector& part, int64_t begin) {
                     Place(layout, slice, part, begin,
                           &tensors[layout.parameters()[slice.parameter_index].name]);
                   });
    }
    return tensors;
  }

  const job::v1::OptimizerSpec spec_;
  ops::Ops& ops_;
  std::vector<ShardMemory> gradients_, weights_;
  std::vector<std::unique_ptr<ShardedOptimizer>> optimizers_;
};

class Reference {
 public:
  Reference(const job::v1::OptimizerSpec& spec, const Shards& shards) : spec_(spec) {
    const model::ChunkLayout layout(SmallConfig(), WholeModel());
    const std::map<std::string, Values> state = shards.State();
    for (const model::Parameter& parameter : layout.parameters()) {
      const Values zeros(parameter.size, 0.0);
      tensors[parameter.name] = {state.at(parameter.name),    zeros, zeros, zeros,
                                 parameter.shape.size() == 2, 1};
    }
  }

  void Step(const std::map<std::string, Values>& gradients, double lr, int step) {
    double norm = 0;
    for (const auto& [name, values] : gradients) {
      for (const double value : values) norm += value * value;
    }
    norm = std::sqrt(norm);
    EXPECT_GT(norm, kClip);  // the tests clip
    for (auto& [name, tensor] : tensors) {
      Values clipped = gradients.at(name);
      for (double& value : clipped) value *= kClip / norm;
      tensor.Step(clipped, spec_, lr, step);
    }
  }

  std::map<std::string, ReferenceTensor> tensors;

 private:
  const job::v1::OptimizerSpec spec_;
};

double Largest(const Values& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

void ExpectNear(const Values& tested, const Values& exact, const Values& allowed,
                const std::string& name) {
  ASSERT_EQ(tested.size(), exact.size()) << name;
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(tested[i], exact[i], allowed[i]) << name << " at " << i;
  }
}

// How far numbers may differ from the formulas.
struct Tolerance {
  double update;        // relative to a tensor's largest update
  double num_rounding;  // per step, in units of kRoundF32 of a weight
};

constexpr Tolerance kF64 = {1e-12, 0};
// About ten roundings in the update, one when it is added.
constexpr Tolerance kF32 = {1e-6, 1};

double Rate(int step) { return 0.02 / step; }

void ExpectFollowsTheFormula(const job::v1::OptimizerSpec& spec, ops::Ops* ops,
                             const Tolerance& tolerance) {
  for (const Sharding sharding : {Sharding{1},
                                  {2},
                                  {3},
                                  {4},
                                  {8},
                                  {1, 2},
                                  {2, 2},
                                  {5, 2},
                                  {1, 1, 1},
                                  {2, 1, 1},
                                  {3, 2, 1},
                                  {8, 1, 400}}) {
    SCOPED_TRACE(testing::Message() << "data " << sharding.data << ", tensor " << sharding.tensor
                                    << ", buckets of " << sharding.bucket_size);
    Shards shards(spec, sharding, ops);
    Reference reference(spec, shards);
    std::map<std::string, Values> allowed;
    for (int step = 1; step <= kSteps; ++step) {
      SCOPED_TRACE(step);
      const std::map<std::string, Values> gradients = RandomGradients(step);
      shards.Step(gradients, Rate(step), step);
      reference.Step(gradients, Rate(step), step);
      const auto state = shards.State();
      const auto weights = shards.Weights();
      const auto updates = shards.Updates();
      for (const auto& [name, tensor] : reference.tensors) {
        const size_t size = tensor.weights.size();
        const double update_error = tolerance.update * Largest(tensor.update);
        ExpectNear(updates.at(name), tensor.update, Values(size, update_error), name);
        allowed[name].resize(size);
        for (size_t i = 0; i < size; ++i) {
          allowed[name][i] += Rate(step) * tensor.ratio * update_error +
                              tolerance.num_rounding * kRoundF32 * std::abs(tensor.weights[i]);
          const double weight = state.at(name)[i];
          const double rounded = tensor::ToFloat(tensor::ToBFloat16(static_cast<float>(weight)));
          ASSERT_EQ(weights.at(name)[i], ops->compute() == DType::kBF16 ? rounded : weight) << name;
        }
        ExpectNear(state.at(name), tensor.weights, allowed[name], name);
        const Values first_error(size, tolerance.update * Largest(tensor.first));
        ExpectNear(state.at("optimizer.exp_avg." + name), tensor.first, first_error, name);
        const Values second_error(size, tolerance.update * Largest(tensor.second));
        ExpectNear(state.at("optimizer.exp_avg_sq." + name), tensor.second, second_error, name);
      }
    }
  }
}

struct Case {
  job::v1::OptimizerType type;
  double weight_decay;
};
void PrintTo(const Case& tested, std::ostream* out) {
  *out << job::v1::OptimizerType_Name(tested.type) << ", decay " << tested.weight_decay;
}

class OptimizerReference : public ::testing::TestWithParam<Case> {
 protected:
  job::v1::OptimizerSpec spec() const { return Spec(GetParam().type, GetParam().weight_decay); }
};

INSTANTIATE_TEST_SUITE_P(Algorithms, OptimizerReference,
                         ::testing::Values(Case{job::v1::OPTIMIZER_TYPE_LAMB, 0.1},
                                           Case{job::v1::OPTIMIZER_TYPE_LAMB, 0},
                                           Case{job::v1::OPTIMIZER_TYPE_ADAMW, 0.1},
                                           Case{job::v1::OPTIMIZER_TYPE_ADAMW, 0}),
                         [](const auto& info) {
                           const std::string type =
                               info.param.type == job::v1::OPTIMIZER_TYPE_LAMB ? "Lamb" : "AdamW";
                           return type + (info.param.weight_decay == 0 ? "WithoutDecay" : "");
                         });

TEST_P(OptimizerReference, FollowsThePublishedFormulaUnderEverySharding) {
  ExpectFollowsTheFormula(spec(), ops::MakeReferenceOps().get(), kF64);
}

TEST_P(OptimizerReference, FollowsThePublishedFormulaUnderEveryShardingOnTheFastCpuOperators) {
  ExpectFollowsTheFormula(spec(), ops::MakeCpuOps(DType::kF32, 1).get(), kF32);
  ExpectFollowsTheFormula(spec(), ops::MakeCpuOps(DType::kF32, 2).get(), kF32);
  ExpectFollowsTheFormula(spec(), ops::MakeCpuOps(DType::kBF16, 1).get(), kF32);
}

TEST_P(OptimizerReference, GivesTheSameBitsAgain) {
  const auto ops = ops::MakeCpuOps(DType::kF32, 2);
  const auto train = [&] {
    Shards shards(spec(), {3, 2, 1}, ops.get());
    for (int step = 1; step <= kSteps; ++step) shards.Step(RandomGradients(step), 0.01, step);
    return shards.State();
  };
  EXPECT_EQ(train(), train());
}

TEST_P(OptimizerReference, MovesOnlyTheMomentsAtRateZero) {
  const auto ops = ops::MakeCpuOps(DType::kF32, 1);
  Shards shards(spec(), {3}, ops.get());
  const auto before = shards.State();
  shards.Step(RandomGradients(1), 0, 1);
  for (const auto& [name, values] : shards.State()) {
    const bool is_moment = name.find("optimizer.") == 0;
    const bool stays = !is_moment || name.find(kZeroGradient) != std::string::npos;
    EXPECT_EQ(values == before.at(name), stays) << name;
  }
}

// The whole tensor decides, not the parts of it that ranks have.
TEST(LambTest, TheTrustRatioIsOneWhereANormIsZeroAndForBiasesAndNorms) {
  const auto ops = ops::MakeReferenceOps();
  for (const Sharding sharding : {Sharding{1}, {8}, {1, 2}, {4, 2}, {4, 2, 1}}) {
    Shards shards(Spec(job::v1::OPTIMIZER_TYPE_LAMB, 0), sharding, ops.get());
    const auto before = shards.State();
    shards.Step(RandomGradients(1), 0.5, 1);
    const auto after = shards.State();
    const auto updates = shards.Updates();
    int num_scaled = 0;
    for (const auto& [name, update] : updates) {
      double weights_norm = 0, update_norm = 0, step_norm = 0;
      for (size_t i = 0; i < update.size(); ++i) {
        weights_norm += std::pow(before.at(name)[i], 2);
        update_norm += std::pow(update[i], 2);
        step_norm += std::pow(after.at(name)[i] - before.at(name)[i], 2);
      }
      const bool is_vector =
          name.find("norm") != std::string::npos || name.find(".bias") != std::string::npos;
      // A scaled step is as long as the weights, times the rate.
      const bool scaled = !is_vector && name != kZeroWeights && name != kZeroGradient;
      const double expected = scaled ? weights_norm : update_norm;
      EXPECT_NEAR(step_norm, 0.25 * expected, 1e-12 * expected) << name;
      num_scaled += scaled ? 1 : 0;
    }
    EXPECT_EQ(num_scaled, 9);  // embeddings 2, layers 2 * 4 - 2, head 1
    EXPECT_EQ(Largest(updates.at(kZeroGradient)), 0);
  }
}

}  // namespace
}  // namespace megascale::optim
