// The fast CPU operators under the whole model: compares the loss with that of the float64
// reference, and checks that the same inputs give the same bits.
//
//   dtype  loss, relative   gradient, relative   reason
//   F32    1e-5             1e-4                 24 bits, sums of some hundred terms
//   BF16   2e-2             1e-1                 8 bits, each activation rounded
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/model/testing/test_pipeline.h"

namespace megascale::model {
namespace {

using tensor::DType;

constexpr int64_t kBatch = 3;
constexpr int64_t kSeq = 37;

struct Result {
  double loss = 0;
  double evaluated = 0;
  NamedValues gradients;
  std::vector<double> logits;
};

Result TrainOnce(const ModelConfig& config, ops::Ops* ops) {
  TestPipeline pipeline({.config = config, .micro_batch = kBatch, .seq = kSeq}, ops);
  const std::vector<int32_t> tokens = RandomTokens(kBatch * (kSeq + 1), config.vocab_size, 8);
  Result result;
  result.evaluated = pipeline.Evaluate(tokens, kBatch);
  result.logits = pipeline.Logits({tokens.begin(), tokens.begin() + 11});
  pipeline.Forward(0, tokens, 1.0 / (kBatch * kSeq));
  pipeline.Backward(0);
  result.loss = pipeline.loss();
  result.gradients = pipeline.Gradients();
  return result;
}

void ExpectNearReference(DType compute, double loss_tolerance, double gradient_tolerance) {
  for (const ModelConfig& config : Styles(LargerConfig(), 9)) {
    const Result expected = TrainOnce(config, ops::MakeReferenceOps().get());
    const Result result = TrainOnce(config, ops::MakeCpuOps(compute, 1).get());
    EXPECT_NEAR(result.loss, expected.loss, loss_tolerance * expected.loss);
    EXPECT_EQ(result.evaluated, result.loss);
    EXPECT_LE(LargestTensorDistance(result.gradients, expected.gradients), gradient_tolerance);
    EXPECT_LE(LargestTensorDistance({{"logits", result.logits}}, {{"logits", expected.logits}}),
              gradient_tolerance);
  }
}

TEST(CpuPrecision, Float32IsNearTheReference) { ExpectNearReference(DType::kF32, 1e-5, 1e-4); }

TEST(CpuPrecision, BFloat16IsNearTheReference) { ExpectNearReference(DType::kBF16, 2e-2, 1e-1); }

TEST(CpuPrecision, TheSameInputsGiveTheSameBits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const int num_threads : {1, 2}) {
      const ModelConfig config = NewStyle(LargerConfig(), 9);
      const Result first = TrainOnce(config, ops::MakeCpuOps(compute, num_threads).get());
      const Result second = TrainOnce(config, ops::MakeCpuOps(compute, num_threads).get());
      EXPECT_EQ(first.loss, second.loss);
      EXPECT_EQ(first.gradients, second.gradients);
      EXPECT_EQ(first.logits, second.logits);
    }
  }
}

}  // namespace
}  // namespace megascale::model
