#include "runtime/model/pass_operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/testing/test_pipeline.h"

namespace megascale::model {
namespace {

using tensor::DType;

// A model that two tensor ranks can share.
ModelConfig EvenConfig() {
  ModelConfig config = TinyConfig();
  config.num_layers = 4;
  config.vocab_size = 14;
  return config;
}

ChunkOptions WholeModel(const ModelConfig& config) {
  return {.config = config,
          .range = *MakeChunkRange(config, 1, 0),
          .micro_batch = 2,
          .seq = 6,
          .compute = DType::kBF16};
}

// "gather: input_norm after 0"; the pieces of tensor ranks stand one by one.
std::vector<std::string> Lines(const PassOperations& pass) {
  std::vector<std::string> lines;
  for (const PassOperation& one : pass) {
    lines.push_back(absl::StrCat(Describe(one), " after ", one.after));
  }
  return lines;
}

// Calls `check` with chunks of all kinds of models, in all variants of passes.
template <typename Check>
void ForEachChunk(const Check& check) {
  for (const ModelConfig& config : AllCombinations(EvenConfig())) {
    for (const int size : {1, 2}) {
      if (config.num_kv_heads % size != 0) continue;
      SCOPED_TRACE(absl::StrCat(Describe(config), ", tensor ", size));
      const int num_chunks = config.tied && config.window > 0 ? 1 : 2;
      for (int chunk = 0; chunk < num_chunks; ++chunk) {
        ChunkOptions options = WholeModel(config);
        options.range = *MakeChunkRange(config, num_chunks, chunk);
        options.tensor = {.size = size, .index = size - 1};
        check(options);
        options.recompute = Recompute::kFull;
        check(options);
        options.recompute = Recompute::kNone;
        options.split_backward = true;
        check(options);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(PassOperationsTest, HaveTheModelFlopsThatUtilisationCounts) {
  ForEachChunk([](const ChunkOptions& options) {
    const ChunkPasses passes = RecordChunk(options, {0}).value();
    const TokenFlops flops = FlopsPerToken(options.config, options.range, options.seq);
    const double tokens =
        static_cast<double>(options.micro_batch * options.seq) / options.tensor.size;
    // The head's backward comes with the loss, in the forward pass.
    const double head =
        options.range.has_head
            ? 2.0 * static_cast<double>(options.config.hidden_size * options.config.vocab_size)
            : 0;
    EXPECT_NEAR(static_cast<double>(FlopsOf(passes.forward)), tokens * (flops.forward + 2 * head),
                0.5);
    if (options.recompute == Recompute::kFull) return;
    EXPECT_NEAR(static_cast<double>(FlopsOf(passes.backward) + FlopsOf(passes.weights)),
                tokens * (flops.backward() - 2 * head), 0.5);
    if (!options.split_backward) return;
    EXPECT_NEAR(static_cast<double>(FlopsOf(passes.weights)), tokens * (flops.weights - head), 0.5);
  });
}

TEST(PassOperationsTest, PiecesAreTheWholePassCutBetweenLayers) {
  ForEachChunk([](const ChunkOptions& options) {
    const ChunkPasses passes = RecordChunk(options, {1, 0}).value();
    ASSERT_EQ(passes.pieces.size(), 2u);
    PassOperations joined = passes.pieces[0];
    const auto exchanges = std::count_if(joined.begin(), joined.end(),
                                         [](const auto& one) { return IsExchange(one.kind); });
    for (PassOperation one : passes.pieces[1]) {
      one.after += static_cast<int>(exchanges);
      joined.push_back(one);
    }
    const PassOperations& whole = options.split_backward ? passes.weights : passes.backward;
    // A piece waits for all exchanges before it; the whole pass may not have waited for them yet.
    ASSERT_EQ(joined.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(joined[i].kind, whole[i].kind);
      EXPECT_EQ(joined[i].flops, whole[i].flops) << i;
      EXPECT_EQ(joined[i].bytes, whole[i].bytes) << i;
      EXPECT_EQ(joined[i].after, whole[i].after) << i;
    }
  });
}

// By hand, from the table in transformer_block.h: two gathers and two sums in a serial block.
TEST(PassOperationsTest, ASerialBlocksForwardIsWhatThePaperDraws) {
  ModelConfig config = EvenConfig();
  config.parallel_block = false;
  config.position = PositionKind::kLearned;
  ChunkOptions options = WholeModel(config);
  options.range = {.first_layer = 1, .num_layers = 1};
  options.tensor = {.size = 2, .index = 1};
  const ChunkPasses passes = RecordChunk(options, {0}).value();
  EXPECT_EQ(absl::StrJoin(Lines(passes.forward), "\n"),
            "input_norm after 0\n"
            "gather: input_norm after 0\n"
            "gather: input_norm after 0\n"
            "attn.qkv after 0\n"  // this rank's own rows, while those of rank 0 come
            "attn.qkv after 1\n"  // rank 0's
            "attention after 2\n"
            "attn.out after 2\n"
            "sum: attn.out after 2\n"
            "attn.out after 2\n"
            "sum: attn.out after 2\n"
            "post_attention_norm after 4\n"
            "gather: post_attention_norm after 4\n"
            "gather: post_attention_norm after 4\n"
            "mlp.up after 4\n"
            "activation after 4\n"
            "mlp.up after 5\n"
            "activation after 5\n"
            "mlp.down after 6\n"
            "sum: mlp.down after 6\n"
            "mlp.down after 6\n"
            "sum: mlp.down after 6\n"
            "add after 8");
  for (const PassOperation& one : passes.forward) {
    if (!IsExchange(one.kind)) continue;
    EXPECT_EQ(one.bytes, options.micro_batch * options.seq / 2 * config.hidden_size * 2);
  }
}

TEST(PassOperationsTest, AProductOfABackwardIsNamedAfterItsWeights) {
  ChunkOptions options = WholeModel(EvenConfig());
  const ChunkPasses passes = RecordChunk(options, {0}).value();
  std::vector<std::string> products;
  for (const PassOperation& one : passes.backward) {
    if (one.kind == OperationKind::kProduct) products.push_back(one.name);
  }
  ASSERT_GE(products.size(), 8u);
  products.resize(8);
  EXPECT_EQ(products,
            (std::vector<std::string>{"mlp.down input", "mlp.down weights", "mlp.up input",
                                      "mlp.up weights", "attn.out input", "attn.out weights",
                                      "attn.qkv input", "attn.qkv weights"}));
}

TEST(PassOperationsTest, TensorRanksTogetherComputeWhatOneDoesAlone) {
  const ChunkOptions alone = WholeModel(EvenConfig());
  ChunkOptions half = alone;
  half.tensor = {.size = 2, .index = 0};
  const ChunkPasses one = RecordChunk(alone, {0}).value();
  const ChunkPasses two = RecordChunk(half, {0}).value();
  EXPECT_EQ(2 * FlopsOf(two.forward), FlopsOf(one.forward));
  EXPECT_EQ(2 * FlopsOf(two.backward), FlopsOf(one.backward));
  EXPECT_EQ(ExchangedBytesOf(one.forward) + ExchangedBytesOf(one.backward), 0);
  EXPECT_GT(ExchangedBytesOf(two.forward), 0);
}

// Some 2 TB of weights and as much again of activations: more than any machine has.
TEST(PassOperationsTest, RecordingTakesNoMemoryForTensors) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a sanitizer leaves too few addresses for it";
#endif
  ModelConfig config = EvenConfig();
  config.position = PositionKind::kRotary;
  config.hidden_size = 25600;
  config.num_heads = config.num_kv_heads = 160;
  config.head_dim = 160;
  config.intermediate_size = 4 * config.hidden_size;
  config.num_layers = 128;
  ChunkOptions options = WholeModel(config);
  options.seq = 32768;
  const ChunkPasses passes = RecordChunk(options, {0}).value();
  EXPECT_GT(FlopsOf(passes.forward), int64_t{1} << 56);
}

TEST(PassOperationsTest, WhatAChunkRefusesIsRefused) {
  ModelConfig config = EvenConfig();
  config.position = PositionKind::kLearned;
  ChunkOptions options = WholeModel(config);
  options.seq = config.max_positions + 2;
  EXPECT_EQ(RecordChunk(options, {0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PassOperationsTest, KernelsAreAskedForTheProductsOfEveryPass) {
  const ChunkOptions options = WholeModel(EvenConfig());
  const ChunkPasses passes = RecordChunk(options, {0}).value();
  size_t products = 0;
  for (const PassOperations* pass : {&passes.forward, &passes.backward}) {
    products += static_cast<size_t>(std::count_if(pass->begin(), pass->end(), [](const auto& one) {
      return one.kind == OperationKind::kProduct;
    }));
  }
  EXPECT_EQ(passes.kernels.products.size(), products);
  EXPECT_EQ(passes.kernels.logits_cols, options.config.vocab_size);
  EXPECT_EQ(passes.kernels.attention.heads, options.config.num_heads);
}

PassOperation Gather() { return {OperationKind::kGather, "", 0, 20}; }
PassOperation Product(int after) { return {OperationKind::kProduct, "", 300, 0, after}; }
constexpr PassRates kRates = {
    .flops_per_second = 100, .memory_bytes_per_second = 50, .exchanged_bytes_per_second = 10};

// By hand: a gather takes 2 s; a product with 3 s for each piece follows.
TEST(PassOperationsTest, ExchangesHideBehindProductsUnlessTheyDoNotOverlap) {
  PassOperations pass = {Gather(), Gather(), Product(0), Product(1), Product(2)};
  EXPECT_DOUBLE_EQ(SecondsOf(pass, kRates, /*overlap=*/false), 2 + 2 + 9);
  EXPECT_DOUBLE_EQ(SecondsOf(pass, kRates, /*overlap=*/true), 9);
  // Each wait is visible: for the first exchange, then the second, then the last product.
  pass = {Gather(), Gather(), Product(1), Product(2)};
  EXPECT_DOUBLE_EQ(SecondsOf(pass, kRates, /*overlap=*/true), 2 + 3 + 3);
  // Nothing overlaps with the last sum.
  pass = {Product(0), {OperationKind::kScatter, "", 0, 20}};
  EXPECT_DOUBLE_EQ(SecondsOf(pass, kRates, /*overlap=*/true), 3 + 2);
}

TEST(PassOperationsTest, AnOperationTakesItsFlopsOrItsBytesWhicheverIsLonger) {
  EXPECT_DOUBLE_EQ(SecondsOf({{OperationKind::kElementwise, "", 0, 100}}, kRates, true), 2);
  EXPECT_DOUBLE_EQ(SecondsOf({{OperationKind::kProduct, "", 300, 100}}, kRates, true), 3);
  EXPECT_DOUBLE_EQ(SecondsOf({{OperationKind::kProduct, "", 300, 200}}, kRates, true), 4);
}

TEST(PassOperationsTest, AnOverlappedPassTakesNoLongerThanOneThatWaitsAndNoLessThanItsProducts) {
  ChunkOptions options = WholeModel(EvenConfig());
  options.tensor = {.size = 2, .index = 1};
  const ChunkPasses passes = RecordChunk(options, {0}).value();
  for (const PassOperations& pass : {passes.forward, passes.backward}) {
    const double products = static_cast<double>(FlopsOf(pass)) / 1e3;
    for (const double bytes_per_second : {1.0, 1e3, 1e9}) {
      const PassRates rates = {.flops_per_second = 1e3,
                               .memory_bytes_per_second = 1e30,
                               .exchanged_bytes_per_second = bytes_per_second};
      const double exchanges = static_cast<double>(ExchangedBytesOf(pass)) / bytes_per_second;
      const double overlapped = SecondsOf(pass, rates, /*overlap=*/true);
      EXPECT_NEAR(SecondsOf(pass, rates, /*overlap=*/false) / (products + exchanges), 1, 1e-9);
      EXPECT_LT(overlapped, products + exchanges);
      EXPECT_GE(overlapped, std::max(products, exchanges) * (1 - 1e-9));
    }
  }
}

}  // namespace
}  // namespace megascale::model
