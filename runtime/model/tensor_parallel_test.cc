// Compares a model that tensor ranks hold together with the same model on one rank. The ranks are
// threads. Their gradients are assembled by the layouts' boxes, and those of replicated parameters
// are summed.
//
//   dtype  loss, relative   gradient, relative   reason
//   F64    1e-10            1e-10                sums in another order
//   F32    1e-6             1e-5                 sums in another order
//   BF16   2e-2             1e-1                 as beside the reference: cpu_precision_test.cc
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/testing/test_heap.h"
#include "runtime/model/testing/test_pipeline.h"
#include "runtime/model/testing/test_tensor_group.h"
#include "tests/soak.h"

namespace megascale::model {
namespace {

using tensor::DType;
using MakeOps = std::function<std::unique_ptr<ops::Ops>()>;

constexpr int kMicrobatches = 2;
constexpr double kScale = 0.01;

// Adjusts a config so that four tensor ranks can have equal parts. A single key/value head becomes
// four. The vocabulary stays: it does not divide, so the last rank's rows end in padding.
ModelConfig Cuttable(ModelConfig config) {
  config.num_kv_heads = config.num_kv_heads == 1 ? 4 : 8;
  config.num_heads = 8;
  config.max_positions = (config.max_positions + 3) / 4 * 4 + 1;
  return config;
}

TestPipelineOptions OptionsOf(const ModelConfig& config, int num_chunks) {
  return {.config = config,
          .num_chunks = num_chunks,
          .seq = config.max_positions - 1,
          .num_slots = kMicrobatches};
}

std::vector<int32_t> TokensOf(const TestPipelineOptions& options, int microbatch) {
  return RandomTokens(options.micro_batch * (options.seq + 1), options.config.vocab_size,
                      40 + microbatch);
}

// Adds a tensor rank's parts of the gradients to those of the whole model.
void AddGradients(const TestPipeline& rank, NamedValues* whole) {
  const NamedValues mine = rank.Gradients();
  for (const Parameter& parameter : rank.Parameters()) {
    int64_t elements = 1;
    for (const int64_t dim : parameter.global_shape) elements *= dim;
    std::vector<double>& sums = (*whole)[parameter.name];
    sums.resize(elements, 0.0);
    const std::vector<double>& values = mine.at(parameter.name);
    for (const ParameterBox& box : parameter.boxes) {
      for (int64_t i = 0; i < box.count; ++i) {
        sums[GlobalIndex(parameter, box, i)] += values[box.begin + i];
      }
    }
  }
}

struct Result {
  double loss = 0;
  double evaluated = 0;  // nats of a micro-batch's first sample
  NamedValues gradients;
  bool operator==(const Result& other) const {
    return loss == other.loss && evaluated == other.evaluated && gradients == other.gradients;
  }
};

// Micro-batches in flight together; each rank checks that all ranks have the same loss.
Result Train(const TestPipelineOptions& options, int tensor_size, const MakeOps& make_ops,
             ExchangeTime time = ExchangeTime::kWhenBegun, bool whole_exchanges = false) {
  std::vector<Result> of_rank(tensor_size);
  std::vector<std::unique_ptr<ops::Ops>> ops(tensor_size);
  std::vector<std::unique_ptr<TestPipeline>> pipelines(tensor_size);
  const auto run = [&](TestTensorGroup* group) {
    const int index = group != nullptr ? group->place().index : 0;
    if (whole_exchanges) group->ExchangeWhole();
    TestPipelineOptions mine = options;
    mine.group = group;
    ops[index] = make_ops();
    pipelines[index] = std::make_unique<TestPipeline>(mine, ops[index].get());
    TestPipeline& pipeline = *pipelines[index];
    of_rank[index].evaluated = pipeline.Evaluate(TokensOf(mine, 0), 1);
    for (int i = 0; i < kMicrobatches; ++i) pipeline.Forward(i, TokensOf(mine, i), kScale);
    for (int i = 0; i < kMicrobatches; ++i) pipeline.Backward(i);
    for (int i = 0; i < kMicrobatches && mine.split_backward; ++i) {
      for (int chunk = 0; chunk < mine.num_chunks; ++chunk) {
        pipeline.chunk(chunk).BackwardWeights(i);
      }
    }
    of_rank[index].loss = pipeline.loss();
  };
  RunTensorRanks(tensor_size, run, time);
  Result result = of_rank[0];
  for (int index = 0; index < tensor_size; ++index) {
    EXPECT_EQ(of_rank[index].loss, result.loss) << "tensor rank " << index;
    EXPECT_EQ(of_rank[index].evaluated, result.evaluated) << "tensor rank " << index;
    AddGradients(*pipelines[index], &result.gradients);
  }
  return result;
}

void ExpectNear(const Result& result, const Result& expected, double loss_tolerance,
                double gradient_tolerance) {
  EXPECT_NEAR(result.loss, expected.loss, loss_tolerance * expected.loss);
  EXPECT_NEAR(result.evaluated, expected.evaluated, loss_tolerance * expected.evaluated);
  EXPECT_LE(LargestTensorDistance(result.gradients, expected.gradients), gradient_tolerance);
}

// The other variants of backward give the same bits as the plain one. In each of them exchanges may
// be carried out only when they are waited for.
void ExpectSameBits(const TestPipelineOptions& plain, const Result& expected, int tensor_size,
                    const MakeOps& make_ops) {
  for (const Recompute mode : {Recompute::kSelective, Recompute::kFull}) {
    TestPipelineOptions options = plain;
    options.recompute = mode;
    for (const ExchangeTime time : {ExchangeTime::kWhenBegun, ExchangeTime::kWhenWaitedFor}) {
      EXPECT_TRUE(Train(options, tensor_size, make_ops, time) == expected)
          << "recompute mode " << static_cast<int>(mode) << ", exchanges "
          << static_cast<int>(time);
    }
  }
  TestPipelineOptions options = plain;
  EXPECT_TRUE(Train(options, tensor_size, make_ops, ExchangeTime::kWhenWaitedFor) == expected);
  options.split_backward = true;
  for (const ExchangeTime time : {ExchangeTime::kWhenBegun, ExchangeTime::kWhenWaitedFor}) {
    EXPECT_TRUE(Train(options, tensor_size, make_ops, time) == expected)
        << "split backward, exchanges " << static_cast<int>(time);
  }
}

// Every `step`th combination of options: in two chunks, but for every third.
void ExpectTheWholeModelsGradients(int tensor_size, size_t step) {
  const std::vector<ModelConfig> configs = AllCombinations(TinyConfig());
  for (size_t i = 0; i < configs.size(); i += step) {
    const ModelConfig config = Cuttable(configs[i]);
    const TestPipelineOptions options = OptionsOf(config, i % 3 == 0 ? 1 : 2);
    SCOPED_TRACE(Describe(config));
    const Result whole = Train(options, 1, ops::MakeReferenceOps);
    const Result parts = Train(options, tensor_size, ops::MakeReferenceOps);
    ExpectNear(parts, whole, 1e-10, 1e-10);
    ExpectSameBits(options, parts, tensor_size, ops::MakeReferenceOps);
    // The reference adds a row in one order, however many rows there are, and so does the group.
    EXPECT_TRUE(Train(options, tensor_size, ops::MakeReferenceOps, ExchangeTime::kWhenWaitedFor,
                      /*whole_exchanges=*/true) == parts);
    ASSERT_FALSE(testing::Test::HasFailure()) << options.num_chunks << " chunks";
  }
}

// Tests every eleventh (`./dev soak`: fifth) and every 29th combination of options: these share no
// factor with any option's number of values.
TEST(TensorParallel, TwoRanksHaveTheGradientsOfOne) {
  ExpectTheWholeModelsGradients(2, IsSoak() ? 5 : 11);
}
TEST(TensorParallel, FourRanksHaveTheGradientsOfOne) { ExpectTheWholeModelsGradients(4, 29); }

// Every 37th combination of options, with one or two key/value heads for four ranks.
TEST(TensorParallel, RanksThatShareAKeyValueHeadHaveTheGradientsOfOne) {
  const std::vector<ModelConfig> configs = AllCombinations(TinyConfig());
  for (size_t i = 0; i < configs.size(); i += 37) {
    ModelConfig config = Cuttable(configs[i]);
    config.num_kv_heads = i % 2 == 0 ? 1 : 2;
    const TestPipelineOptions options = OptionsOf(config, 1);
    SCOPED_TRACE(Describe(config));
    const Result whole = Train(options, 1, ops::MakeReferenceOps);
    ExpectNear(Train(options, 4, ops::MakeReferenceOps), whole, 1e-10, 1e-10);
  }
}

void ExpectNearOneRank(DType compute, double loss_tolerance, double gradient_tolerance) {
  const MakeOps make_ops = [compute] { return ops::MakeCpuOps(compute, 1); };
  for (const ModelConfig& style : Styles(LargerConfig(), 9)) {
    const TestPipelineOptions options = OptionsOf(Cuttable(style), 2);
    SCOPED_TRACE(Describe(options.config));
    const Result whole = Train(options, 1, make_ops);
    for (const int tensor_size : {2, 4}) {
      const Result parts = Train(options, tensor_size, make_ops);
      ExpectNear(parts, whole, loss_tolerance, gradient_tolerance);
      ExpectSameBits(options, parts, tensor_size, make_ops);
    }
  }
}

TEST(TensorParallel, Float32IsNearThatOfOneRank) { ExpectNearOneRank(DType::kF32, 1e-6, 1e-5); }

TEST(TensorParallel, BFloat16IsNearThatOfOneRank) { ExpectNearOneRank(DType::kBF16, 2e-2, 1e-1); }

// The exchanges of a layer's pass.
struct Exchanges {
  int gathers = 0;
  int sums = 0;
  bool operator==(const Exchanges& other) const {
    return gathers == other.gathers && sums == other.sums;
  }
};
void PrintTo(const Exchanges& exchanges, std::ostream* out) {
  *out << exchanges.gathers << " gathers, " << exchanges.sums << " sums";
}

struct ExchangesOfPasses {
  Exchanges forward, backward, weights;  // weights: BackwardWeights
};

ExchangesOfPasses CountOfModel(const ModelConfig& config, bool split) {
  ExchangesOfPasses counts;
  RunTensorRanks(2, [&](TestTensorGroup* group) {
    TestPipelineOptions options = OptionsOf(config, 1);
    options.group = group;
    options.split_backward = split;
    const auto ops = ops::MakeReferenceOps();
    TestPipeline pipeline(options, ops.get());
    Exchanges before;
    const auto since = [&] {
      // In a piece for each rank.
      const Exchanges now = {group->num_broadcasts() / 2, group->num_sums() / 2};
      const Exchanges made = {now.gathers - before.gathers, now.sums - before.sums};
      before = now;
      return made;
    };
    ExchangesOfPasses mine;
    pipeline.Forward(0, TokensOf(options, 0), kScale);
    mine.forward = since();
    pipeline.Backward(0);
    mine.backward = since();
    if (split) pipeline.chunk(0).BackwardWeights(0);
    mine.weights = since();
    if (group->place().index == 0) counts = mine;
  });
  return counts;
}

// The exchanges of one more layer.
ExchangesOfPasses CountOfLayer(ModelConfig config, bool split) {
  const ExchangesOfPasses some = CountOfModel(config, split);
  ++config.num_layers;
  const ExchangesOfPasses more = CountOfModel(config, split);
  const auto difference = [](const Exchanges& a, const Exchanges& b) {
    return Exchanges{a.gathers - b.gathers, a.sums - b.sums};
  };
  return {difference(more.forward, some.forward), difference(more.backward, some.backward),
          difference(more.weights, some.weights)};
}

// transformer_block.h has the table.
TEST(TensorParallel, ABlockGathersAndAddsUpAsSeldomAsItsKindAllows) {
  struct Case {
    ModelConfig config;
    Exchanges forward, backward;
    int gathers_for_weights;     // in one part with the rest of backward
    int gathers_of_second_part;  // these, and the gradients of outputs
  };
  const ModelConfig serial = Cuttable(TinyConfig());
  const Case cases[] = {{Cuttable(NewStyle(TinyConfig(), 3)), {1, 1}, {1, 1}, 1, 2},
                        {Cuttable(NeoXStyle(TinyConfig())), {2, 1}, {1, 2}, 2, 3},
                        {serial, {2, 2}, {2, 2}, 2, 4}};
  for (const Case& block : cases) {
    SCOPED_TRACE(Describe(block.config));
    const ExchangesOfPasses plain = CountOfLayer(block.config, /*split=*/false);
    EXPECT_EQ(plain.forward, block.forward);
    EXPECT_EQ(plain.backward,
              (Exchanges{block.backward.gathers + block.gathers_for_weights, block.backward.sums}));
    const ExchangesOfPasses split = CountOfLayer(block.config, /*split=*/true);
    EXPECT_EQ(split.forward, block.forward);
    EXPECT_EQ(split.backward, block.backward);
    EXPECT_EQ(split.weights, (Exchanges{block.gathers_of_second_part, 0}));
  }
}

TEST(TensorParallel, ALayerTakesItsPartOfTheMemory) {
  for (const ModelConfig& style : Styles(LargerConfig(), 9)) {
    const ModelConfig config = Cuttable(style);
    const auto bytes = [&](int tensor_size, int num_layers) {
      return TransformerChunk::ActivationBytes({.config = config,
                                                .range = {.num_layers = num_layers},
                                                .micro_batch = 8,
                                                .seq = 64,
                                                .num_slots = 3,
                                                .tensor = {tensor_size, 0}});
    };
    const auto of_layer = [&](int tensor_size) {
      return bytes(tensor_size, 3) - bytes(tensor_size, 2);
    };
    EXPECT_EQ(of_layer(1), 2 * of_layer(2));
    EXPECT_EQ(of_layer(1), 4 * of_layer(4));
  }
}

TEST(TensorParallel, TakesNothingFromTheHeapAfterTheFirstStep) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  TestTensorExchange steps(2);  // so that all are in the same step
  base::HeapCalls before, taken;
  RunTensorRanks(2, [&](TestTensorGroup* group) {
    const int index = group->place().index;
    TestPipelineOptions options = OptionsOf(Cuttable(LargerConfig()), 1);
    options.group = group;
    const auto ops = ops::MakeCpuOps(DType::kBF16, 1);
    TestPipeline pipeline(options, ops.get());
    const std::vector<int32_t> tokens = TokensOf(options, 0);
    for (int step = 0; step < 2; ++step) {
      pipeline.Forward(0, tokens, kScale);
      steps.Meet();
      if (index == 0) before = base::CountHeapCalls();
      steps.Meet();
      pipeline.chunk(0).Backward(0);
      double loss = 0;
      pipeline.chunk(0).Evaluate(0, 1, {&loss, DType::kF64, 1});
      steps.Meet();
      if (index == 0) taken = base::CountHeapCalls() - before;
      steps.Meet();
    }
  });
  EXPECT_EQ(taken.ours, 0);
  EXPECT_EQ(taken.mappings, 0);
}

// A group that has failed before its first call.
class FailedGroup final : public TensorGroup {
 public:
  TensorPlace place() const override { return {.size = 2, .index = 1}; }
  Exchange Broadcast(int, const tensor::Vector&, const tensor::Vector&) override { return 1; }
  Exchange Reduce(int, const tensor::Vector&, const tensor::Vector&) override { return 1; }
  void Wait(Exchange) override {}
  absl::Status status() const override { return absl::AbortedError("a peer's process ended"); }
};

TEST(TensorParallel, PassesComeToTheirEndAfterTheGroupHasFailed) {
  const MakeOps makers[] = {ops::MakeReferenceOps, [] { return ops::MakeCpuOps(DType::kBF16, 1); }};
  for (const ModelConfig& style : Styles(TinyConfig(), 3)) {
    for (const MakeOps& make_ops : makers) {
      FailedGroup group;
      TestPipelineOptions options = OptionsOf(Cuttable(style), 2);
      options.group = &group;
      const auto ops = make_ops();
      TestPipeline pipeline(options, ops.get());
      pipeline.Forward(0, TokensOf(options, 0), kScale);
      pipeline.Backward(0);
    }
  }
}

TEST(TensorParallel, PartsThatAreNotEqualAreRefused) {
  const auto ops = ops::MakeReferenceOps();
  ModelConfig odd = Cuttable(TinyConfig());
  odd.intermediate_size = 13;
  for (const auto& [config, seq] : {std::pair(Cuttable(TinyConfig()), 7), {odd, 8}}) {
    FailedGroup group;
    const auto chunk = TransformerChunk::Create({.config = config,
                                                 .range = {.num_layers = 1},
                                                 .seq = seq,
                                                 .compute = DType::kF64,
                                                 .tensor = group.place()},
                                                ops.get(), {}, &group);
    EXPECT_EQ(chunk.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(chunk.status().message()), testing::HasSubstr("expected multiples"));
  }
}

}  // namespace
}  // namespace megascale::model
