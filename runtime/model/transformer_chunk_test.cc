#include "runtime/model/transformer_chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/model/testing/test_pipeline.h"

namespace megascale::model {
namespace {

// Differences that come from another order of float64 additions only.
constexpr double kRounding = 1e-12;

ModelConfig FourLayers() {
  ModelConfig config = TinyConfig();
  config.num_layers = 4;
  return config;
}

struct Result {
  double loss = 0;
  NamedValues gradients;
};

// One step over `tokens` in micro-batches.
Result Train(const TestPipelineOptions& options, const std::vector<int32_t>& tokens) {
  const auto ops = ops::MakeReferenceOps();
  TestPipeline pipeline(options, ops.get());
  const int64_t size = options.micro_batch * (options.seq + 1);
  for (auto begin = tokens.begin(); begin != tokens.end(); begin += size) {
    pipeline.Forward(0, std::vector<int32_t>(begin, begin + size), 0.01);
    pipeline.Backward(0);
  }
  return {pipeline.loss(), pipeline.Gradients()};
}

double LogSumExp(const std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

TEST(TransformerChunk, ChunksTogetherEqualTheWholeModel) {
  for (const ModelConfig& config : Styles(FourLayers(), 3)) {
    const std::vector<int32_t> tokens = RandomTokens(2 * 7, config.vocab_size, 1);
    const Result whole = Train({.config = config, .num_chunks = 1}, tokens);
    for (const int num_chunks : {2, 4}) {
      const Result cut = Train({.config = config, .num_chunks = num_chunks}, tokens);
      EXPECT_NEAR(cut.loss, whole.loss, kRounding * whole.loss);
      EXPECT_LE(LargestDifference(cut.gradients, whole.gradients), kRounding);
    }
  }
}

// One step over `tokens`, a single sample, with a backward in one part or in two.
Result TrainOnOneSample(TestPipelineOptions options, const std::vector<int32_t>& tokens,
                        ops::Ops* ops) {
  options.micro_batch = 1;
  options.seq = static_cast<int64_t>(tokens.size()) - 1;
  TestPipeline pipeline(options, ops);
  pipeline.Forward(0, tokens, 0.1);
  pipeline.Backward(0);
  for (int i = 0; options.split_backward && i < options.num_chunks; ++i) {
    pipeline.chunk(i).BackwardWeights(0);
  }
  return {pipeline.loss(), pipeline.Gradients()};
}

void Add(const Result& part, Result* sum) {
  sum->loss += part.loss;
  for (const auto& [name, values] : part.gradients) {
    std::vector<double>& sums = sum->gradients[name];
    sums.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
  }
}

// Documents of 1, 13, 7 and 15 tokens in a sample: each has the loss, and adds the gradients, of a
// sample of its own, however the pass is cut or recomputed.
void ExpectDocumentsAsIfAlone(const ModelConfig& config, ops::Ops* ops, double tolerance) {
  constexpr int32_t kEnd = 0;
  std::vector<int32_t> tokens = RandomTokens(37, config.vocab_size - 1, 4);
  for (int32_t& token : tokens) ++token;
  for (const size_t end : {0, 13, 20}) tokens[end] = kEnd;
  Result alone;
  for (size_t begin = 0; begin + 1 < tokens.size();) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = std::find(first, tokens.end() - 1, kEnd);
    const auto target = end == tokens.end() - 1 ? end : end + 1;
    Add(TrainOnOneSample({.config = config}, std::vector<int32_t>(first, target + 1), ops), &alone);
    begin = static_cast<size_t>(target - tokens.begin());
  }
  const TestPipelineOptions packed = {.config = config, .end_token = kEnd};
  std::vector<TestPipelineOptions> ways(4, packed);
  ways[1].num_chunks = 3;
  ways[2].recompute = Recompute::kFull;
  ways[3].split_backward = true;
  for (const TestPipelineOptions& way : ways) {
    const Result result = TrainOnOneSample(way, tokens, ops);
    EXPECT_NEAR(result.loss, alone.loss, tolerance * alone.loss);
    EXPECT_LE(LargestTensorDistance(result.gradients, alone.gradients), tolerance);
  }
  TestPipelineOptions across = packed;
  across.end_token = -1;
  EXPECT_GT(std::abs(TrainOnOneSample(across, tokens, ops).loss - alone.loss), 1e-3);
}

TEST(TransformerChunk, DocumentsOfASampleAreAsIfAlone) {
  for (const ModelConfig& config : Styles(LargerConfig(), 5)) {
    ExpectDocumentsAsIfAlone(config, ops::MakeReferenceOps().get(), 1e-11);
    ExpectDocumentsAsIfAlone(config, ops::MakeCpuOps(tensor::DType::kF32, 2).get(), 1e-5);
  }
}

TEST(TransformerChunk, MicroBatchesAddUpToOneBigBatch) {
  const ModelConfig config = FourLayers();
  const std::vector<int32_t> tokens = RandomTokens(4 * 7, config.vocab_size, 2);
  const Result big = Train({.config = config, .num_chunks = 2, .micro_batch = 4}, tokens);
  const Result small = Train({.config = config, .num_chunks = 2, .micro_batch = 1}, tokens);
  EXPECT_NEAR(small.loss, big.loss, kRounding * big.loss);
  EXPECT_LE(LargestDifference(small.gradients, big.gradients), kRounding);
}

TEST(TransformerChunk, AddsToTheGradientsThatItIsTold) {
  for (ModelConfig config : Styles(FourLayers(), 3)) {
    for (const bool tied : {false, true}) {
      config.tied = tied;
      const TestPipelineOptions options = {.config = config, .num_chunks = tied ? 1 : 2};
      const std::vector<int32_t> one = RandomTokens(2 * 7, config.vocab_size, 4);
      const std::vector<int32_t> other = RandomTokens(2 * 7, config.vocab_size, 5);
      const auto ops = ops::MakeReferenceOps();
      TestPipeline pipeline(options, ops.get());
      for (const auto& tokens : {one, other}) {
        pipeline.Forward(0, tokens, 0.01);
        pipeline.Backward(0);
        pipeline.UseOtherGradients();
      }
      EXPECT_EQ(pipeline.Gradients(), Train(options, one).gradients);
      pipeline.UseOtherGradients();
      EXPECT_EQ(pipeline.Gradients(), Train(options, other).gradients);
    }
  }
}

TEST(TransformerChunk, ATiedHeadGivesTheSameInAnyNumberOfChunks) {
  for (ModelConfig config : Styles(FourLayers(), 3)) {
    config.tied = true;
    const std::vector<int32_t> tokens = RandomTokens(4 * 7, config.vocab_size, 4);
    const Result whole = Train({.config = config}, tokens);
    for (const int num_chunks : {2, 4}) {
      const Result parts = Train({.config = config, .num_chunks = num_chunks}, tokens);
      EXPECT_EQ(parts.loss, whole.loss);
      EXPECT_LE(LargestDifference(parts.gradients, whole.gradients), kRounding);
    }
  }
}

TEST(TransformerChunk, SlotsDoNotInterfere) {
  const ModelConfig config = FourLayers();
  const std::vector<int32_t> tokens = RandomTokens(6 * 7, config.vocab_size, 3);
  const Result one_by_one = Train({.config = config, .num_chunks = 2}, tokens);

  const auto ops = ops::MakeReferenceOps();
  TestPipeline pipeline({.config = config, .num_chunks = 2, .num_slots = 3}, ops.get());
  const int slots[] = {2, 0, 1};
  for (int i = 0; i < 3; ++i) {
    const auto begin = tokens.begin() + i * 14;
    pipeline.Forward(slots[i], std::vector<int32_t>(begin, begin + 14), 0.01);
  }
  for (const int slot : slots) pipeline.Backward(slot);
  EXPECT_EQ(pipeline.loss(), one_by_one.loss);
  EXPECT_EQ(pipeline.Gradients(), one_by_one.gradients);
}

TEST(TransformerChunk, AWindowOfTheWholeSequenceIsFullAttention) {
  ModelConfig config = FourLayers();
  const std::vector<int32_t> tokens = RandomTokens(2 * 7, config.vocab_size, 4);
  const Result full = Train({.config = config}, tokens);
  for (const int64_t window : {6, 100}) {
    config.window = window;
    const Result windowed = Train({.config = config}, tokens);
    EXPECT_EQ(windowed.loss, full.loss);
    EXPECT_EQ(windowed.gradients, full.gradients);
  }
  config.window = 2;
  EXPECT_NE(Train({.config = config}, tokens).loss, full.loss);
}

// Also where chunks begin in the middle of the model.
TEST(TransformerChunk, EachLayerHasItsOwnWindow) {
  ModelConfig config = FourLayers();
  const std::vector<int32_t> tokens = RandomTokens(2 * 7, config.vocab_size, 4);
  const Result full = Train({.config = config}, tokens);
  config.window = 2;
  const Result windowed = Train({.config = config}, tokens);
  config.full_layers = {true, true, true, true};
  EXPECT_EQ(Train({.config = config}, tokens).loss, full.loss);
  config.full_layers = {false, false, false, false};
  EXPECT_EQ(Train({.config = config}, tokens).loss, windowed.loss);
  std::set<double> losses = {full.loss, windowed.loss};
  for (size_t layer = 0; layer < 4; ++layer) {
    config.full_layers = {true, true, true, true};
    config.full_layers[layer] = false;
    const Result one = Train({.config = config}, tokens);
    EXPECT_TRUE(losses.insert(one.loss).second) << layer;
    for (const int num_chunks : {2, 3, 4}) {
      const Result cut = Train({.config = config, .num_chunks = num_chunks}, tokens);
      EXPECT_NEAR(cut.loss, one.loss, kRounding) << layer;
    }
  }
}

// The loss of a position is that of the logits after its prefix: later tokens have no effect on it.
TEST(TransformerChunk, LogitsOfAPrefixAreThoseOfItsPositionInTheFullSequence) {
  for (const ModelConfig& config : Styles(FourLayers(), 3)) {
    const auto ops = ops::MakeReferenceOps();
    TestPipeline pipeline({.config = config, .micro_batch = 1}, ops.get());
    const std::vector<int32_t> tokens = RandomTokens(7, config.vocab_size, 5);
    double loss = 0;
    for (int length = 1; length <= 6; ++length) {
      const std::vector<double> logits =
          pipeline.Logits(std::vector<int32_t>(tokens.begin(), tokens.begin() + length));
      ASSERT_EQ(static_cast<int64_t>(logits.size()), config.vocab_size);
      loss += LogSumExp(logits) - logits[tokens[length]];
    }
    EXPECT_NEAR(loss, pipeline.Evaluate(tokens, 1), kRounding * loss);
  }
}

TEST(TransformerChunk, EvaluationIsTheTrainingLossAndLeavesGradientsAlone) {
  const ModelConfig config = FourLayers();
  const auto ops = ops::MakeReferenceOps();
  TestPipeline pipeline({.config = config, .num_chunks = 2}, ops.get());
  const std::vector<int32_t> tokens = RandomTokens(2 * 7, config.vocab_size, 6);
  pipeline.Forward(0, tokens, 0.01);
  pipeline.Backward(0);
  const NamedValues gradients = pipeline.Gradients();
  EXPECT_EQ(pipeline.Evaluate(tokens, 2), pipeline.loss());
  EXPECT_EQ(pipeline.Gradients(), gradients);
}

TEST(TransformerChunk, EvaluatesPartOfABatch) {
  const ModelConfig config = FourLayers();
  const auto ops = ops::MakeReferenceOps();
  const std::vector<int32_t> tokens = RandomTokens(2 * 7, config.vocab_size, 7);
  TestPipeline pairs({.config = config, .num_chunks = 2}, ops.get());
  TestPipeline singles({.config = config, .num_chunks = 2, .micro_batch = 1}, ops.get());
  const double first = singles.Evaluate({tokens.begin(), tokens.begin() + 7}, 1);
  EXPECT_EQ(pairs.Evaluate(tokens, 1), first);
}

TEST(TransformerChunk, PlansMemoryBySlots) {
  ChunkOptions options{.config = FourLayers(), .seq = 6};
  options.range = *MakeChunkRange(options.config, 2, 1);
  const int64_t one = TransformerChunk::ActivationBytes(options);
  options.num_slots = 2;
  const int64_t two = TransformerChunk::ActivationBytes(options);
  options.num_slots = 3;
  EXPECT_EQ(TransformerChunk::ActivationBytes(options) - two, two - one);
  EXPECT_GT(one, two - one);
}

TEST(TransformerChunk, RefusesSequencesBeyondTheLearnedPositions) {
  const auto ops = ops::MakeReferenceOps();
  ChunkOptions options{.config = TinyConfig(), .seq = 8, .compute = ops->compute()};
  options.range = *MakeChunkRange(options.config, 1, 0);
  const auto chunk = TransformerChunk::Create(options, ops.get(), {});
  EXPECT_EQ(chunk.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(chunk.status().message()), testing::HasSubstr("at most"));
}

TEST(TransformerChunkDeathTest, BackwardNeedsItsForward) {
  const auto ops = ops::MakeReferenceOps();
  TestPipeline pipeline({.config = TinyConfig()}, ops.get());
  EXPECT_DEATH(pipeline.chunk(0).Backward(0), "SlotState::kBackward");
}

}  // namespace
}  // namespace megascale::model
