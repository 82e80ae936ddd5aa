// Compares Backward in two parts with Backward in one: the same bits, in the same memory.
//
// If the weights' products come in the order of the micro-batches, each gradient is the same sum in
// the same order, with equal bits. In another order only the matrices' gradients differ, by
// rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/testing/test_heap.h"
#include "runtime/model/testing/test_pipeline.h"

namespace megascale::model {
namespace {

using tensor::DType;

constexpr int kMicrobatches = 3;
constexpr double kScale = 0.01;
// Differences that come from another order of float64 additions only.
constexpr double kRounding = 1e-12;

ModelConfig ThreeLayers() {
  ModelConfig config = TinyConfig();
  config.num_layers = 3;
  return config;
}

// One of each kind of block and both kinds of output matrix.
struct Case {
  ModelConfig config;
  int num_chunks;
};
std::vector<Case> CasesOf(const std::vector<ModelConfig>& configs) {
  std::vector<Case> cases;
  for (const ModelConfig& config : configs) {
    for (int num_chunks = 1; num_chunks <= (config.tied ? 2 : 3); ++num_chunks) {
      cases.push_back({config, num_chunks});
    }
  }
  return cases;
}

TestPipelineOptions OptionsOf(const Case& given, bool split) {
  return {.config = given.config,
          .num_chunks = given.num_chunks,
          .seq = given.config.max_positions - 1,
          .num_slots = kMicrobatches,
          .split_backward = split};
}

std::vector<int32_t> TokensOf(const TestPipelineOptions& options, int microbatch) {
  return RandomTokens(options.micro_batch * (options.seq + 1), options.config.vocab_size,
                      20 + microbatch);
}

// All micro-batches forward, each in its slot, then backward in the same order.
void ForwardAndBackward(const TestPipelineOptions& options, TestPipeline* pipeline) {
  for (int i = 0; i < kMicrobatches; ++i) pipeline->Forward(i, TokensOf(options, i), kScale);
  for (int i = 0; i < kMicrobatches; ++i) pipeline->Backward(i);
}

NamedValues InOnePart(const Case& given, ops::Ops* ops) {
  const TestPipelineOptions options = OptionsOf(given, /*split=*/false);
  TestPipeline pipeline(options, ops);
  ForwardAndBackward(options, &pipeline);
  return pipeline.Gradients();
}

// `slots`: the order of the calls of BackwardWeights, in every chunk.
NamedValues InTwoParts(const Case& given, const std::vector<int>& slots, ops::Ops* ops) {
  const TestPipelineOptions options = OptionsOf(given, /*split=*/true);
  TestPipeline pipeline(options, ops);
  ForwardAndBackward(options, &pipeline);
  for (const int slot : slots) {
    for (int i = 0; i < given.num_chunks; ++i) pipeline.chunk(i).BackwardWeights(slot);
  }
  return pipeline.Gradients();
}

// Whether a parameter's gradient is a matrix product that BackwardWeights adds. Forward adds that
// of the output matrix.
bool IsMatrixOfALayer(const std::string& name) {
  return name.find(".layers.") != std::string::npos && name.find("norm") == std::string::npos &&
         name.find(".weight") != std::string::npos;
}

TEST(SplitBackward, EqualsBackwardInEveryBitForCombinationsOfOptions) {
  const auto ops = ops::MakeReferenceOps();
  for (const Case& given : CasesOf(SomeCombinations(ThreeLayers()))) {
    ASSERT_EQ(InTwoParts(given, {0, 1, 2}, ops.get()), InOnePart(given, ops.get()))
        << Describe(given.config) << ", chunks " << given.num_chunks;
  }
}

TEST(SplitBackward, EqualsBackwardInEveryBitOfTheFastOperators) {
  for (const auto& [compute, num_threads] : {std::pair(DType::kF32, 1), {DType::kBF16, 2}}) {
    const auto ops = ops::MakeCpuOps(compute, num_threads);
    for (const ModelConfig& config : Styles(LargerConfig(), 9)) {
      const Case given = {config, 2};
      EXPECT_EQ(InTwoParts(given, {0, 1, 2}, ops.get()), InOnePart(given, ops.get()))
          << Name(compute) << ", " << Describe(config);
    }
  }
}

// As in a schedule: each chunk adds its weights' products when it has time, while other
// micro-batches come and go, and slots are reused at once.
TEST(SplitBackward, EqualsBackwardInEveryBitWhereverWeightsFitIn) {
  const auto ops = ops::MakeReferenceOps();
  constexpr int kAll = 8;
  for (const Case& given : CasesOf(Styles(ThreeLayers(), 3))) {
    TestPipeline whole(OptionsOf(given, /*split=*/false), ops.get());
    const TestPipelineOptions options = OptionsOf(given, /*split=*/true);
    TestPipeline split(options, ops.get());
    std::vector<int> done(given.num_chunks, 0);  // micro-batches whose weights have been added
    const auto catch_up = [&](int chunk, int target) {
      for (; done[chunk] < target; ++done[chunk]) {
        split.chunk(chunk).BackwardWeights(done[chunk] % kMicrobatches);
      }
    };
    for (int i = 0; i < kAll; ++i) {
      const int slot = i % kMicrobatches;
      whole.Forward(slot, TokensOf(options, i), kScale);
      whole.Backward(slot);
      // Chunk 0 is one micro-batch behind, chunk 1 two; chunk 2 adds three at a time.
      for (int chunk = 0; chunk < given.num_chunks; ++chunk) {
        catch_up(chunk,
                 chunk == 2 ? i / kMicrobatches * kMicrobatches : std::max(0, i - 1 - chunk));
      }
      split.Forward(slot, TokensOf(options, i), kScale);
      split.Backward(slot);
    }
    for (int chunk = 0; chunk < given.num_chunks; ++chunk) catch_up(chunk, kAll);
    EXPECT_EQ(split.loss(), whole.loss());
    EXPECT_EQ(split.Gradients(), whole.Gradients()) << Describe(given.config);
  }
}

TEST(SplitBackward, InAnotherOrderOnlyRoundingOfTheLayersMatricesDiffers) {
  const auto ops = ops::MakeReferenceOps();
  for (const Case& given : CasesOf(Styles(ThreeLayers(), 3))) {
    const NamedValues expected = InOnePart(given, ops.get());
    const NamedValues gradients = InTwoParts(given, {2, 0, 1}, ops.get());
    EXPECT_LE(LargestDifference(gradients, expected), kRounding);
    EXPECT_NE(gradients, expected) << "the order had no effect";
    for (const auto& [name, values] : gradients) {
      if (IsMatrixOfALayer(name)) continue;
      EXPECT_EQ(values, expected.at(name)) << name;
    }
  }
}

TEST(SplitBackward, InputComesFirstAndLeavesOnlyTheLayersMatrices) {
  const auto ops = ops::MakeReferenceOps();
  for (const Case& given : CasesOf(Styles(ThreeLayers(), 3))) {
    const TestPipelineOptions options = OptionsOf(given, /*split=*/true);
    TestPipeline whole(OptionsOf(given, /*split=*/false), ops.get());
    TestPipeline split(options, ops.get());
    ForwardAndBackward(options, &whole);
    ForwardAndBackward(options, &split);
    const auto expect_same_gradients_of_inputs = [&] {
      for (int chunk = 0; chunk < given.num_chunks; ++chunk) {
        for (int slot = 0; slot < kMicrobatches; ++slot) {
          const Vector a = Flat(split.chunk(chunk).gradient(slot));
          const Vector b = Flat(whole.chunk(chunk).gradient(slot));
          EXPECT_TRUE(std::equal(a.as<double>(), a.as<double>() + a.size, b.as<double>()));
        }
      }
    };
    expect_same_gradients_of_inputs();
    const NamedValues expected = whole.Gradients();
    for (const auto& [name, values] : split.Gradients()) {
      if (IsMatrixOfALayer(name)) {
        EXPECT_THAT(values, testing::Each(0.0)) << name;
      } else {
        EXPECT_EQ(values, expected.at(name)) << name;
      }
    }
    for (int slot = 0; slot < kMicrobatches; ++slot) {
      for (int i = 0; i < given.num_chunks; ++i) split.chunk(i).BackwardWeights(slot);
    }
    expect_same_gradients_of_inputs();
  }
}

// A chunk that is the whole model. Each piece of its backward has gradient memory for its own layer
// only, and its forward for the head only.
NamedValues InPieces(const ModelConfig& config, bool split, ops::Ops* ops) {
  TestPipelineOptions options = OptionsOf({config, 1}, split);
  options.early_gradients = true;
  TestPipeline pipeline(options, ops);
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  std::vector<std::vector<double>> parts;  // by layer; the last is the head's
  for (int layer = 0; layer <= config.num_layers; ++layer) {
    const int64_t end =
        layer < config.num_layers ? layout.FirstElement(layer + 1) : layout.num_elements();
    parts.emplace_back(static_cast<size_t>(end - layout.FirstElement(layer)));
  }
  const auto use = [&](int layer) {
    std::vector<double>& part = parts[static_cast<size_t>(layer)];
    pipeline.chunk(0).AddGradientsTo({part.data(), DType::kF64, static_cast<int64_t>(part.size())},
                                     layout.FirstElement(layer));
  };
  use(config.num_layers);
  for (int i = 0; i < kMicrobatches; ++i) pipeline.Forward(i, TokensOf(options, i), kScale);
  for (int i = 0; i < kMicrobatches; ++i) {
    if (split) pipeline.Backward(i);
    for (int layer = config.num_layers; layer-- > 0;) {
      use(layer);
      if (split) {
        pipeline.chunk(0).BackwardWeights(i, layer);
      } else {
        pipeline.chunk(0).Backward(i, layer);
      }
    }
  }
  std::vector<double> flat;
  for (const auto& part : parts) flat.insert(flat.end(), part.begin(), part.end());
  NamedValues gradients;
  for (const Parameter& parameter : layout.parameters()) {
    const auto begin = flat.begin() + parameter.offset;
    gradients[parameter.name].assign(begin, begin + parameter.size);
  }
  return gradients;
}

// With sharded gradients each element goes to the piece that completes its layer, whichever call
// makes it.
TEST(SplitBackward, PiecesHaveTheSameGradientsInMemoryForTheirLayersAlone) {
  const auto ops = ops::MakeReferenceOps();
  for (const ModelConfig& config : SomeCombinations(ThreeLayers())) {
    const NamedValues expected = InOnePart({config, 1}, ops.get());
    for (const bool split : {false, true}) {
      EXPECT_LE(LargestDifference(InPieces(config, split, ops.get()), expected), kRounding)
          << Describe(config) << (split ? ", split" : "");
    }
  }
}

TEST(SplitBackward, ASlotServesEvaluationAndLogitsAgainAfterBothParts) {
  const auto ops = ops::MakeReferenceOps();
  for (const ModelConfig& config : Styles(ThreeLayers(), 3)) {
    const TestPipelineOptions options = OptionsOf({config, 1}, /*split=*/true);
    TestPipeline pipeline(options, ops.get());
    const std::vector<int32_t> tokens = TokensOf(options, 0);
    const double loss = pipeline.Evaluate(tokens, 2);
    const std::vector<double> logits = pipeline.Logits({tokens.begin(), tokens.begin() + 4});
    ForwardAndBackward(options, &pipeline);
    for (const int slot : {1, 0, 2}) pipeline.chunk(0).BackwardWeights(slot);
    EXPECT_EQ(pipeline.Evaluate(tokens, 2), loss);
    EXPECT_EQ(pipeline.Logits({tokens.begin(), tokens.begin() + 4}), logits);
  }
}

TEST(SplitBackward, TakesNoMemoryBeyondThatOfOneBackward) {
  for (const Case& given : CasesOf(Styles(ThreeLayers(), 3))) {
    for (int i = 0; i < given.num_chunks; ++i) {
      ChunkOptions options{.config = given.config,
                           .range = *MakeChunkRange(given.config, given.num_chunks, i),
                           .seq = 6,
                           .num_slots = 2};
      const int64_t bytes = TransformerChunk::ActivationBytes(options);
      options.split_backward = true;
      EXPECT_EQ(TransformerChunk::ActivationBytes(options), bytes);
    }
  }
}

TEST(SplitBackward, TakesNothingFromTheHeapAfterTheFirstStep) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  for (const ModelConfig& config : Styles(LargerConfig(), 3)) {
    const auto ops = ops::MakeCpuOps(DType::kBF16, 1);
    const TestPipelineOptions options = OptionsOf({config, 1}, /*split=*/true);
    TestPipeline pipeline(options, ops.get());
    base::HeapCalls taken;
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < kMicrobatches; ++i) pipeline.Forward(i, TokensOf(options, i), kScale);
      const base::HeapCalls before = base::CountHeapCalls();
      for (int i = 0; i < kMicrobatches; ++i) pipeline.chunk(0).BackwardInput(i);
      for (int i = kMicrobatches; i-- > 0;) pipeline.chunk(0).BackwardWeights(i);
      taken = base::CountHeapCalls() - before;
    }
    EXPECT_EQ(taken.ours, 0);
    EXPECT_EQ(taken.mappings, 0);
  }
}

TEST(SplitBackwardDeathTest, CallsComeInTheirOrder) {
  const auto ops = ops::MakeReferenceOps();
  const TestPipelineOptions options = OptionsOf({ThreeLayers(), 1}, /*split=*/true);
  TestPipeline pipeline(options, ops.get());
  TransformerChunk& chunk = pipeline.chunk(0);
  EXPECT_DEATH(chunk.BackwardInput(0), "SlotState::kBackward");
  pipeline.Forward(0, TokensOf(options, 0), kScale);
  EXPECT_DEATH(chunk.BackwardWeights(0), "SlotState::kBackwardWeights");
  pipeline.Backward(0);
  EXPECT_DEATH(chunk.Backward(0), "SlotState::kBackward");
  EXPECT_DEATH(pipeline.Forward(0, TokensOf(options, 0), kScale), "SlotState::kFree");
  chunk.BackwardWeights(0);
  pipeline.Forward(0, TokensOf(options, 0), kScale);
}

TEST(SplitBackwardDeathTest, NeedsItsOption) {
  const auto ops = ops::MakeReferenceOps();
  const TestPipelineOptions options = OptionsOf({ThreeLayers(), 1}, /*split=*/false);
  TestPipeline pipeline(options, ops.get());
  pipeline.Forward(0, TokensOf(options, 0), kScale);
  EXPECT_DEATH(pipeline.chunk(0).BackwardInput(0), "split_backward");
}

}  // namespace
}  // namespace megascale::model
