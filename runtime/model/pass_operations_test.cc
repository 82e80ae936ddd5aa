#include "runtime/model/pass_operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/test_pipeline.h"
#include "runtime/model/transformer_chunk.h"

namespace megascale::model {
namespace {

using Log = std::vector<PassOperation>;

// Computes nothing: writes down what a chunk asks for.
class RecordingOps final : public ops::Ops {
 public:
  RecordingOps(Log* log, const int* num_waited) : log_(*log), num_waited_(*num_waited) {}

  ops::DType compute() const override { return ops::DType::kBF16; }
  void MatMul(const ops::MatMulArgs& args) override {
    const int64_t inner = args.transpose_a == ops::Transpose::kYes ? args.a.rows : args.a.cols;
    log_.push_back(
        {OperationKind::kProduct, "", 2 * args.c.rows * args.c.cols * inner, 0, num_waited_});
  }
  void Attention(const ops::AttentionArgs& args) override { Attend(args, 1); }
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override {
    Attend(args.forward, 2);
  }
  void Norm(const ops::NormArgs&) override {}
  void NormBackward(const ops::NormBackwardArgs&) override {}
  void Rotary(const ops::RotaryArgs&) override {}
  void Activation(const ops::ActivationArgs&) override {}
  void ActivationBackward(const ops::ActivationBackwardArgs&) override {}
  void Embedding(const ops::EmbeddingArgs&) override {}
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs&) override {}
  void LogitStatistics(const ops::LogitStatisticsArgs&) override {}
  void CrossEntropy(const ops::CrossEntropyArgs&) override {}
  void AdamW(const ops::AdamWArgs&) override {}
  void AddColumnSums(const Matrix&, const Vector&) override {}
  void Add(const Matrix&, const Matrix&, const Matrix&) override {}
  void AddScaled(double, const Vector&, const Vector&) override {}
  double SumOfSquares(const Vector&) override { return 0; }
  void Cast(const Vector&, const Vector&) override {}
  void FillZero(const Vector&) override {}

 private:
  // Two products in a forward pass: each query with each key that it sees, and with its value.
  void Attend(const ops::AttentionArgs& args, int64_t times) {
    int64_t keys = 0;
    for (int64_t t = 0; t < args.seq; ++t) {
      keys += args.window == 0 ? t + 1 : std::min(t + 1, args.window);
    }
    log_.push_back({OperationKind::kAttention, "",
                    times * 2 * 2 * args.batch * args.heads * args.head_dim * keys, 0,
                    num_waited_});
  }

  Log& log_;
  const int& num_waited_;  // exchanges
};

class RecordingGroup final : public TensorGroup {
 public:
  RecordingGroup(int size, Log* log, int* num_waited)
      : size_(size), log_(*log), num_waited_(*num_waited) {}

  TensorPlace place() const override { return {size_, size_ - 1}; }
  Exchange Broadcast(int from, const Vector& in, const Vector& out) override {
    return Begin(OperationKind::kGather, from, in, out);
  }
  Exchange Reduce(int to, const Vector& in, const Vector& out) override {
    return Begin(OperationKind::kScatter, to, in, out);
  }
  void Wait(Exchange last) override {
    EXPECT_LE(last, num_begun_);
    num_waited_ = std::max(num_waited_, static_cast<int>(last));
  }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  // Each rank's piece in turn.
  Exchange Begin(OperationKind kind, int rank, const Vector& in, const Vector& out) {
    EXPECT_EQ(out.size, in.size);
    EXPECT_EQ(rank, num_begun_ % size_);
    log_.push_back({kind, "", 0, in.size * static_cast<int64_t>(SizeOf(in.dtype)), num_waited_});
    return ++num_begun_;
  }

  const int size_;
  Log& log_;
  int& num_waited_;
  Exchange num_begun_ = 0;
};

std::string ToText(const Log& log) {
  return absl::StrJoin(log, "\n", [](std::string* out, const PassOperation& one) {
    absl::StrAppend(out, static_cast<int>(one.kind), " ", one.flops, " ", one.bytes, " after ",
                    one.after);
  });
}

// `num_exchanges`: made before the pass.
Log Expand(const PassOperations& operations, int num_exchanges) {
  Log all;
  const auto add = [&](const Log& part) {
    const int before = num_exchanges;
    for (PassOperation one : part) {
      one.after += before;
      if (one.bytes > 0) ++num_exchanges;
      all.push_back(one);
    }
  };
  add(operations.before);
  for (int i = 0; i < operations.num_layers; ++i) add(operations.layer);
  add(operations.after);
  return all;
}

// What the chunk did since the last call is what the pass is said to consist of.
void ExpectPass(const ChunkOptions& options, Pass pass, int num_exchanges, Log* log) {
  const PassOperations operations = OperationsOf(options, pass);
  const Log expanded = Expand(operations, num_exchanges);
  EXPECT_EQ(ToText(*log), ToText(expanded)) << "pass " << static_cast<int>(pass);
  int64_t flops = 0;
  int64_t bytes = 0;
  for (const PassOperation& one : *log) {
    flops += one.flops;
    bytes += one.bytes;
  }
  EXPECT_EQ(operations.flops(), flops);
  EXPECT_EQ(operations.exchanged_bytes(), bytes);
  log->clear();
}

void ExpectAllPasses(const ChunkOptions& options) {
  Log log;
  int num_waited = 0;
  RecordingOps ops(&log, &num_waited);
  RecordingGroup group(options.tensor.size, &log, &num_waited);
  const ChunkLayout layout(options.config, options.range, options.tensor);
  tensor::Arena arena = *tensor::Arena::Create(
      tensor::Arena::BytesFor(options.compute, layout.num_elements()) +
      tensor::Arena::BytesFor(AccumulationType(options.compute), layout.num_elements()));
  const ChunkParameters parameters = {
      .weights = arena.Allocate(options.compute, layout.num_elements()),
      .gradients = arena.Allocate(AccumulationType(options.compute), layout.num_elements())};
  const auto chunk = *TransformerChunk::Create(options, &ops, parameters,
                                               options.tensor.size > 1 ? &group : nullptr);
  double loss = 0;
  chunk->Forward(0, {.gradient_scale = 1, .sum = &loss});
  ExpectPass(options, Pass::kForward, 0, &log);
  const int after_forward = num_waited;
  if (options.split_backward) {
    chunk->BackwardInput(0);
    ExpectPass(options, Pass::kBackwardInput, after_forward, &log);
    const int after_input = num_waited;
    chunk->BackwardWeights(0);
    ExpectPass(options, Pass::kBackwardWeights, after_input, &log);
  } else {
    chunk->Backward(0);
    ExpectPass(options, Pass::kBackward, after_forward, &log);
  }
}

// Two tensor ranks can share it.
ModelConfig EvenConfig() {
  ModelConfig config = TinyConfig();
  config.num_layers = 4;
  config.vocab_size = 14;
  return config;
}

TEST(PassOperationsTest, AreWhatAChunkDoesInThatOrder) {
  for (const ModelConfig& config : AllCombinations(EvenConfig())) {
    for (const int size : {1, 2}) {
      if (config.num_kv_heads % size != 0) continue;
      SCOPED_TRACE(absl::StrCat(Describe(config), ", tensor ", size));
      const int num_chunks = config.tied ? 1 : 2;
      for (int chunk = 0; chunk < num_chunks; ++chunk) {
        ChunkOptions options = {.config = config,
                                .range = *MakeChunkRange(config, num_chunks, chunk),
                                .micro_batch = 2,
                                .seq = 6,
                                .compute = tensor::DType::kBF16,
                                .tensor = {.size = size, .index = size - 1}};
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          options.recompute = recompute;
          ExpectAllPasses(options);
        }
        options.recompute = Recompute::kNone;
        options.split_backward = true;
        ExpectAllPasses(options);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(PassOperationsTest, TensorRanksTogetherComputeWhatOneDoesAlone) {
  const ModelConfig config = EvenConfig();
  const ChunkOptions alone = {.config = config, .range = *MakeChunkRange(config, 1, 0), .seq = 6};
  ChunkOptions half = alone;
  half.tensor = {.size = 2, .index = 0};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_EQ(2 * OperationsOf(half, pass).flops(), OperationsOf(alone, pass).flops());
    EXPECT_EQ(OperationsOf(alone, pass).exchanged_bytes(), 0);
    EXPECT_GT(OperationsOf(half, pass).exchanged_bytes(), 0);
  }
}

// By hand: a gather, and products of 3 s a piece over its rows.
TEST(PassOperationsTest, ExchangesHideBehindProductsUnlessTheyDoNotOverlap) {
  const PassOperation gather = {OperationKind::kGather, "", 0, 20};
  const auto product = [](int after) {
    return PassOperation{OperationKind::kProduct, "", 300, 0, after};
  };
  PassOperations pass;
  pass.num_layers = 2;
  pass.layer = {gather, gather, product(0), product(1), product(2)};
  const PassRates rates = {.flops_per_second = 100, .bytes_per_second = 10};
  EXPECT_DOUBLE_EQ(SecondsOf(pass, rates, /*overlap=*/false), 2 * (2 + 2 + 9));
  EXPECT_DOUBLE_EQ(SecondsOf(pass, rates, /*overlap=*/true), 2 * 9);
  // Each is waited for: the first, then the second, then the last product.
  pass.layer = {gather, gather, product(1), product(2)};
  EXPECT_DOUBLE_EQ(SecondsOf(pass, rates, /*overlap=*/true), 2 * (2 + 3 + 3));
  // What nothing hides: a last sum.
  pass.layer = {product(0), {OperationKind::kScatter, "", 0, 20}};
  EXPECT_DOUBLE_EQ(SecondsOf(pass, rates, /*overlap=*/true), 2 * (3 + 2));
}

TEST(PassOperationsTest, AnOverlappedPassTakesNoLongerThanOneThatWaitsAndNoLessThanItsProducts) {
  const ModelConfig config = EvenConfig();
  ChunkOptions options = {.config = config, .range = *MakeChunkRange(config, 1, 0), .seq = 6};
  options.tensor = {.size = 2, .index = 1};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const PassOperations operations = OperationsOf(options, pass);
    const double products = static_cast<double>(operations.flops()) / 1e3;
    for (const double bytes_per_second : {1.0, 1e3, 1e9}) {
      const PassRates rates = {.flops_per_second = 1e3, .bytes_per_second = bytes_per_second};
      const double exchanges = static_cast<double>(operations.exchanged_bytes()) / bytes_per_second;
      const double overlapped = SecondsOf(operations, rates, /*overlap=*/true);
      EXPECT_NEAR(SecondsOf(operations, rates, /*overlap=*/false) / (products + exchanges), 1,
                  1e-9);
      EXPECT_LT(overlapped, products + exchanges);
      EXPECT_GE(overlapped, std::max(products, exchanges) * (1 - 1e-9));
    }
  }
}

}  // namespace
}  // namespace megascale::model
