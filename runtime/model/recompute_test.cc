// Compares recomputed activations with kept ones: the same bits, in less memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
constexpr Recompute kModes[] = {Recompute::kSelective, Recompute::kFull};

ModelConfig ThreeLayers() {
  ModelConfig config = TinyConfig();
  config.num_layers = 3;
  return config;
}

TestPipelineOptions OptionsOf(const ModelConfig& config, int num_chunks, Recompute recompute) {
  return {.config = config,
          .num_chunks = num_chunks,
          .seq = config.max_positions - 1,
          .num_slots = kMicrobatches,
          .recompute = recompute};
}

std::vector<int32_t> TokensOf(const TestPipelineOptions& options, int microbatch) {
  return RandomTokens(options.micro_batch * (options.seq + 1), options.config.vocab_size,
                      30 + microbatch);
}

struct Result {
  double loss = 0;
  NamedValues gradients;
  bool operator==(const Result& other) const {
    return loss == other.loss && gradients == other.gradients;
  }
};

// All micro-batches are in flight before the first goes backward, so other layers have used the
// shared memory of each layer in between.
Result Train(const TestPipelineOptions& options, ops::Ops* ops) {
  TestPipeline pipeline(options, ops);
  for (int i = 0; i < kMicrobatches; ++i) pipeline.Forward(i, TokensOf(options, i), kScale);
  for (int i = 0; i < kMicrobatches; ++i) pipeline.Backward(i);
  return {pipeline.loss(), pipeline.Gradients()};
}

TEST(Recompute, GivesTheSameBitsForCombinationsOfOptions) {
  const auto ops = ops::MakeReferenceOps();
  for (const ModelConfig& config : SomeCombinations(ThreeLayers())) {
    for (const int num_chunks : {1, 2}) {
      if (config.tied && num_chunks > 1 && config.window > 0) continue;
      const Result kept = Train(OptionsOf(config, num_chunks, Recompute::kNone), ops.get());
      for (const Recompute mode : kModes) {
        ASSERT_TRUE(Train(OptionsOf(config, num_chunks, mode), ops.get()) == kept)
            << Describe(config) << ", mode " << static_cast<int>(mode);
      }
    }
  }
}

TEST(Recompute, GivesTheSameBitsWithTheFastOperators) {
  for (const auto& [compute, num_threads] : {std::pair(DType::kF32, 1), {DType::kBF16, 2}}) {
    const auto ops = ops::MakeCpuOps(compute, num_threads);
    for (const ModelConfig& config : Styles(LargerConfig(), 9)) {
      const Result kept = Train(OptionsOf(config, 2, Recompute::kNone), ops.get());
      for (const Recompute mode : kModes) {
        EXPECT_TRUE(Train(OptionsOf(config, 2, mode), ops.get()) == kept)
            << Name(compute) << ", mode " << static_cast<int>(mode) << ", " << Describe(config);
      }
    }
  }
}

TEST(Recompute, EvaluationInAnotherSlotDisturbsNoBackward) {
  const auto ops = ops::MakeReferenceOps();
  for (const ModelConfig& config : Styles(ThreeLayers(), 3)) {
    const TestPipelineOptions plain = OptionsOf(config, 1, Recompute::kNone);
    TestPipeline kept(plain, ops.get());
    kept.Forward(1, TokensOf(plain, 0), kScale);
    kept.Backward(1);
    for (const Recompute mode : kModes) {
      TestPipeline pipeline(OptionsOf(config, 1, mode), ops.get());
      pipeline.Forward(1, TokensOf(plain, 0), kScale);
      EXPECT_EQ(pipeline.Evaluate(TokensOf(plain, 1), 1), kept.Evaluate(TokensOf(plain, 1), 1));
      const std::vector<int32_t> prompt = RandomTokens(4, config.vocab_size, 1);
      EXPECT_EQ(pipeline.Logits(prompt), kept.Logits(prompt));
      pipeline.Backward(1);
      EXPECT_EQ(pipeline.Gradients(), kept.Gradients());
    }
  }
}

// The activations of one layer in elements, [N] each, as the formulas at Recompute count them.
struct LayerElements {
  int64_t kept_none, kept_selective, kept_full;
  int64_t floats_none, floats_selective;  // statistics
};

void ExpectBytes(const ModelConfig& config, const LayerElements& layer) {
  constexpr int64_t kTokens = 2 * 16;  // so that each buffer is a multiple of the alignment
  const auto bytes = [&](Recompute mode, int num_layers, int num_slots) {
    return TransformerChunk::ActivationBytes({.config = config,
                                              .range = {.first_layer = 1, .num_layers = num_layers},
                                              .micro_batch = 2,
                                              .seq = kTokens / 2,
                                              .num_slots = num_slots,
                                              .compute = DType::kBF16,
                                              .recompute = mode});
  };
  // Bytes of one more layer in each of three slots.
  const auto of_layer = [&](Recompute mode) { return (bytes(mode, 3, 3) - bytes(mode, 2, 3)) / 3; };
  const int64_t none = kTokens * (2 * layer.kept_none + 4 * layer.floats_none);
  const int64_t selective = kTokens * (2 * layer.kept_selective + 4 * layer.floats_selective);
  const int64_t full = kTokens * 2 * layer.kept_full;
  EXPECT_EQ(of_layer(Recompute::kNone), none);
  EXPECT_EQ(of_layer(Recompute::kSelective), selective);
  EXPECT_EQ(of_layer(Recompute::kFull), full);
  // Recomputed activations exist once.
  const int64_t without_slots = bytes(Recompute::kNone, 3, 0);
  EXPECT_EQ(bytes(Recompute::kSelective, 3, 0) - without_slots, none - selective);
  EXPECT_EQ(bytes(Recompute::kFull, 3, 0) - without_slots, none - full);
}

TEST(Recompute, KeepsWhatItsFormulaSays) {
  // C 48, A 48, Q 144, U 192, I 192; statistics: 4 of two LayerNorms, 3 heads.
  ExpectBytes(LargerConfig(), {.kept_none = 4 * 48 + 144 + 48 + 192 + 192,
                               .kept_selective = 2 * 48 + 144 + 48 + 192,
                               .kept_full = 48,
                               .floats_none = 4 + 3,
                               .floats_selective = 3});
  // One norm and one stream. Q 80, U 384; statistics: 1 of an RMSNorm, 3 heads.
  ExpectBytes(NewStyle(LargerConfig(), 9), {.kept_none = 2 * 48 + 80 + 48 + 384 + 192,
                                            .kept_selective = 48 + 80 + 48 + 384,
                                            .kept_full = 48,
                                            .floats_none = 1 + 3,
                                            .floats_selective = 3});
  // Two norms of one stream.
  ExpectBytes(NeoXStyle(LargerConfig()), {.kept_none = 3 * 48 + 144 + 48 + 192 + 192,
                                          .kept_selective = 48 + 144 + 48 + 192,
                                          .kept_full = 48,
                                          .floats_none = 4 + 3,
                                          .floats_selective = 3});
}

TEST(Recompute, TakesNothingFromTheHeapAfterTheFirstStep) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  for (const Recompute mode : kModes) {
    const auto ops = ops::MakeCpuOps(DType::kBF16, 1);
    const TestPipelineOptions options = OptionsOf(LargerConfig(), 1, mode);
    TestPipeline pipeline(options, ops.get());
    base::HeapCalls taken;
    for (int step = 0; step < 2; ++step) {
      pipeline.Forward(0, TokensOf(options, 0), kScale);
      const base::HeapCalls before = base::CountHeapCalls();
      pipeline.chunk(0).Backward(0);
      taken = base::CountHeapCalls() - before;
    }
    EXPECT_EQ(taken.ours, 0);
    EXPECT_EQ(taken.mappings, 0);
  }
}

TEST(Recompute, IsRefusedWhereBackwardIsSplit) {
  const auto ops = ops::MakeReferenceOps();
  for (const Recompute mode : kModes) {
    ChunkOptions options{.config = ThreeLayers(), .seq = 6, .compute = ops->compute()};
    options.range = *MakeChunkRange(options.config, 1, 0);
    options.split_backward = true;
    options.recompute = mode;
    const int64_t elements = ChunkLayout(options.config, options.range).num_elements();
    std::vector<double> weights(elements), gradients(elements);
    const auto chunk =
        TransformerChunk::Create(options, ops.get(),
                                 {.weights = {weights.data(), DType::kF64, elements},
                                  .gradients = {gradients.data(), DType::kF64, elements}});
    EXPECT_EQ(chunk.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(chunk.status().message()), testing::HasSubstr("backward is split"));
  }
}

}  // namespace
}  // namespace megascale::model
