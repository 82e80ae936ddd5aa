// The float64 reference by itself: compares its backward operators with finite differences of its
// forward ones, and a few values with ones computed by hand.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/testing/test_numbers.h"

namespace megascale::ops {
namespace {

constexpr double kStep = 1e-5;
// Central differences of smooth functions of the order of 1: kStep^2, and rounding / kStep.
constexpr double kDifferenceTolerance = 1e-8;

class Reference : public ::testing::Test {
 protected:
  Matrix Make(int64_t rows, int64_t cols) { return twins_.Input(rows, cols).exact; }
  Vector MakeVector(int64_t size) { return twins_.InputVector(size).exact; }
  Matrix MakeZero(int64_t rows, int64_t cols) { return twins_.Input(rows, cols, 0, 0).exact; }
  Vector MakeZeroVector(int64_t size) { return twins_.InputVector(size, 0).exact; }

  // Compares `gradient` with the differences of `loss` when elements of `x` change.
  void ExpectGradient(double* x, int64_t size, const double* gradient,
                      const std::function<double()>& loss) {
    for (int64_t i = 0; i < size; ++i) {
      const double before = x[i];
      x[i] = before + kStep;
      const double above = loss();
      x[i] = before - kStep;
      const double below = loss();
      x[i] = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), kDifferenceTolerance) << i;
    }
  }
  void ExpectGradient(const Matrix& x, const Matrix& gradient,
                      const std::function<double()>& loss) {
    ExpectGradient(x.as<double>(), x.rows * x.cols, gradient.as<double>(), loss);
  }
  void ExpectGradient(const Vector& x, const Vector& gradient,
                      const std::function<double()>& loss) {
    ExpectGradient(x.as<double>(), x.size, gradient.as<double>(), loss);
  }

  // A scalar that depends on every element of `out`.
  static double Dot(const Matrix& out, const Matrix& weights) {
    double sum = 0;
    for (int64_t i = 0; i < out.rows * out.cols; ++i) {
      sum += out.as<double>()[i] * weights.as<double>()[i];
    }
    return sum;
  }

  Twins twins_{DType::kF64};
  std::unique_ptr<Ops> ops_ = MakeReferenceOps();
};

TEST_F(Reference, MatMulOfTwoByTwo) {
  double a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, c[] = {100, 0, 0, 0};
  const auto matrix = [](double* data) { return Matrix{data, DType::kF64, 2, 2, 2}; };
  MatMulArgs args;
  args.a = matrix(a), args.b = matrix(b), args.c = matrix(c);
  ops_->MatMul(args);
  EXPECT_EQ(std::vector<double>(c, c + 4), (std::vector<double>{19, 22, 43, 50}));
  args.transpose_a = Transpose::kYes;
  args.accumulate = true;
  ops_->MatMul(args);
  EXPECT_EQ(std::vector<double>(c, c + 4),
            (std::vector<double>{19 + 26, 22 + 30, 43 + 38, 50 + 44}));
}

TEST_F(Reference, NormBackwardIsTheGradientOfNorm) {
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const Matrix x = Make(3, 7), out = Make(3, 7), d_out = Make(3, 7), d_x = MakeZero(3, 7);
    const Vector weight = MakeVector(7), bias = MakeVector(7);
    const Vector mean = MakeVector(3), rstd = MakeVector(3);
    const Vector d_weight = MakeZeroVector(7), d_bias = MakeZeroVector(7);
    const auto loss = [&] {
      NormArgs args;
      args.kind = kind;
      args.x = x, args.out = out, args.weight = weight, args.bias = bias;
      args.mean = mean, args.rstd = rstd;
      ops_->Norm(args);
      return Dot(out, d_out);
    };
    loss();
    NormBackwardArgs args;
    args.kind = kind;
    args.x = x, args.weight = weight, args.mean = mean, args.rstd = rstd;
    args.d_out = d_out, args.d_x = d_x, args.d_weight = d_weight, args.d_bias = d_bias;
    ops_->NormBackward(args);
    ExpectGradient(x, d_x, loss);
    ExpectGradient(weight, d_weight, loss);
    ExpectGradient(bias, d_bias, loss);
  }
}

TEST_F(Reference, AttentionBackwardIsTheGradientOfAttention) {
  // Documents of 2 and 3 tokens in one sequence, of 4 and 1 in the other.
  int32_t begins[] = {0, 0, 2, 2, 2, 0, 0, 0, 0, 4};
  for (const auto& [window, within_documents] :
       {std::pair{0, false}, {1, false}, {3, false}, {0, true}, {2, true}}) {
    AttentionArgs args;
    if (within_documents) args.document_begins = {begins, DType::kI32, 10};
    args.batch = 2, args.seq = 5, args.heads = 4, args.kv_heads = 2, args.head_dim = 3;
    args.window = window;
    args.q = Make(10, 12), args.k = Make(10, 6), args.v = Make(10, 6), args.out = Make(10, 12);
    args.log_sum_exp = MakeVector(40);
    AttentionBackwardArgs backward;
    backward.d_out = Make(10, 12);
    backward.d_q = Make(10, 12), backward.d_k = Make(10, 6), backward.d_v = Make(10, 6);
    const auto loss = [&] {
      ops_->Attention(args);
      return Dot(args.out, backward.d_out);
    };
    loss();
    backward.forward = args;
    ops_->AttentionBackward(backward);
    ExpectGradient(args.q, backward.d_q, loss);
    ExpectGradient(args.k, backward.d_k, loss);
    ExpectGradient(args.v, backward.d_v, loss);
  }
}

TEST_F(Reference, AttentionOfADocumentIsThatOfASequenceOfItsOwn) {
  int32_t begins[] = {0, 0, 2, 2, 2};
  AttentionArgs all, second;
  all.batch = 1, all.seq = 5, all.heads = all.kv_heads = 1, all.head_dim = 2;
  all.q = Make(5, 2), all.k = Make(5, 2), all.v = Make(5, 2), all.out = Make(5, 2);
  all.log_sum_exp = MakeVector(5);
  all.document_begins = {begins, DType::kI32, 5};
  ops_->Attention(all);
  second = all;
  second.seq = 3, second.document_begins = {}, second.out = Make(3, 2);
  second.log_sum_exp = MakeVector(3);
  for (Matrix* matrix : {&second.q, &second.k, &second.v}) {
    matrix->data = matrix->as<double>() + 4, matrix->rows = 3;
  }
  ops_->Attention(second);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(second.out.as<double>()[i], all.out.as<double>()[4 + i]);
}

TEST_F(Reference, AttentionWithAWindowOfOneCopiesValues) {
  AttentionArgs args;
  args.batch = 1, args.seq = 4, args.heads = args.kv_heads = 1, args.head_dim = 2;
  args.window = 1;
  args.q = Make(4, 2), args.k = Make(4, 2), args.v = Make(4, 2), args.out = Make(4, 2);
  args.log_sum_exp = MakeVector(4);
  ops_->Attention(args);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(args.out.as<double>()[i], args.v.as<double>()[i]);
}

TEST_F(Reference, RotaryTurnsPairsByTheirPositionAndBack) {
  RotaryArgs args;
  args.seq = 3, args.heads = 2, args.head_dim = 4, args.x = Make(6, 8);
  const std::vector<double> before(args.x.as<double>(), args.x.as<double>() + 48);
  ops_->Rotary(args);
  // Row 2 is position 2; the first pair of a head turns by one radian a position.
  const double x = before[16], y = before[18];
  EXPECT_NEAR(args.x.as<double>()[16], x * std::cos(2) - y * std::sin(2), 1e-15);
  EXPECT_NEAR(args.x.as<double>()[18], y * std::cos(2) + x * std::sin(2), 1e-15);
  args.inverse = true;
  ops_->Rotary(args);
  for (int i = 0; i < 48; ++i) EXPECT_NEAR(args.x.as<double>()[i], before[i], 1e-15);
}

TEST_F(Reference, RotaryOfAPartTurnsItAsAHeadOfThatSizeAndLeavesTheRest) {
  RotaryArgs whole, part;
  whole.seq = 3, whole.heads = 1, whole.head_dim = 4, whole.x = Make(6, 4);
  part.seq = 3, part.heads = 1, part.head_dim = 6, part.rotary_dim = 4, part.x = Make(6, 6);
  const std::vector<double> before(part.x.as<double>(), part.x.as<double>() + 36);
  for (int n = 0; n < 6; ++n) {
    std::copy_n(&before[n * 6], 4, whole.x.as<double>() + n * 4);
  }
  ops_->Rotary(whole);
  ops_->Rotary(part);
  for (int n = 0; n < 6; ++n) {
    const double* row = part.x.as<double>() + n * 6;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(row[i], whole.x.as<double>()[n * 4 + i]);
    for (int i = 4; i < 6; ++i) EXPECT_EQ(row[i], before[n * 6 + i]);
  }
}

TEST_F(Reference, ActivationBackwardIsTheGradientOfActivation) {
  for (ActivationKind kind :
       {ActivationKind::kGelu, ActivationKind::kGeluTanh, ActivationKind::kSwiGlu}) {
    const int64_t width = kind == ActivationKind::kSwiGlu ? 2 : 1;
    const Matrix in = twins_.Input(3, 5 * width, 0, 3).exact, out = Make(3, 5);
    const Matrix d_out = Make(3, 5), d_in = Make(3, 5 * width);
    const auto loss = [&] {
      ops_->Activation({kind, in, out});
      return Dot(out, d_out);
    };
    ops_->ActivationBackward({kind, in, d_out, d_in});
    ExpectGradient(in, d_in, loss);
  }
}

TEST_F(Reference, EmbeddingBackwardIsTheGradientOfEmbedding) {
  const Vector tokens = twins_.Tokens(8, 3);
  const Matrix token_weight = Make(3, 4), position_weight = Make(5, 4), out = Make(8, 4);
  const Matrix d_out = Make(8, 4), d_token = MakeZero(3, 4), d_position = MakeZero(5, 4);
  const auto loss = [&] {
    ops_->Embedding({4, tokens, token_weight, position_weight, out});
    return Dot(out, d_out);
  };
  ops_->EmbeddingBackward({4, tokens, d_out, d_token, d_position});
  ExpectGradient(token_weight, d_token, loss);
  ExpectGradient(position_weight, d_position, loss);
}

TEST_F(Reference, PositionsOfAnEmbeddingCountFromTheDocumentsBegin) {
  int32_t numbers[] = {0, 0, 0, 3, 0, 1, 1, 1};
  const Vector tokens = twins_.Tokens(8, 3), begins = {numbers, DType::kI32, 8};
  const Matrix token_weight = Make(3, 4), position_weight = Make(5, 4), out = Make(8, 4);
  const Matrix d_out = Make(8, 4), d_token = MakeZero(3, 4), d_position = MakeZero(5, 4);
  const auto loss = [&] {
    EmbeddingArgs args{4, tokens, token_weight, position_weight, out};
    args.document_begins = begins;
    ops_->Embedding(args);
    return Dot(out, d_out);
  };
  loss();
  const int32_t token = tokens.as<int32_t>()[3];
  EXPECT_EQ(ReadElement(out, 3, 1),
            ReadElement(token_weight, token, 1) + ReadElement(position_weight, 0, 1));
  EmbeddingBackwardArgs backward{4, tokens, d_out, d_token, d_position};
  backward.document_begins = begins;
  ops_->EmbeddingBackward(backward);
  ExpectGradient(token_weight, d_token, loss);
  ExpectGradient(position_weight, d_position, loss);
}

TEST_F(Reference, CrossEntropyOverwritesLogitsWithItsGradient) {
  const Matrix logits = Make(4, 6), gradient = MakeZero(4, 6);
  const Vector targets = twins_.Tokens(4, 6);
  const auto loss = [&] {
    double sum = 0;
    ops_->CrossEntropy({logits, targets, 1.0, false, Number(&sum)});
    return sum / 4;
  };
  ops_->Add(logits, gradient, gradient);
  double sum = 0;
  ops_->CrossEntropy({gradient, targets, 0.25, true, Number(&sum)});
  EXPECT_DOUBLE_EQ(sum / 4, loss());
  ExpectGradient(logits, gradient, loss);
}

TEST_F(Reference, CrossEntropyOfEqualLogitsIsTheLogarithmOfTheirNumber) {
  double loss = 0;
  ops_->CrossEntropy({MakeZero(1, 8), twins_.Tokens(1, 8), 1.0, false, Number(&loss)});
  EXPECT_NEAR(loss, std::log(8), 1e-15);
}

TEST_F(Reference, CrossEntropyOfTwoPartsIsThatOfTheWhole) {
  const Matrix logits = Make(4, 6), whole = MakeZero(4, 6);
  const Vector targets = twins_.Tokens(4, 6);
  ops_->Add(logits, whole, whole);
  double whole_loss = 0;
  ops_->CrossEntropy({whole, targets, 0.25, true, Number(&whole_loss)});
  std::vector<double> statistics(2 * 3 * 4);
  const auto part_of = [&](int64_t part) {
    Matrix columns = logits;
    columns.data = columns.as<double>() + part * 3;
    columns.cols = 3;
    return columns;
  };
  for (int64_t part = 0; part < 2; ++part) {
    ops_->LogitStatistics(
        {part_of(part), targets, {part * 3, 6}, {statistics.data() + part * 12, DType::kF64, 12}});
  }
  for (int64_t part = 0; part < 2; ++part) {
    double loss = 0;
    ops_->CrossEntropy({part_of(part),
                        targets,
                        0.25,
                        true,
                        Number(&loss),
                        {part * 3, 6},
                        {statistics.data(), DType::kF64, 24}});
    EXPECT_NEAR(loss, whole_loss, 1e-13);
  }
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t v = 0; v < 6; ++v) {
      EXPECT_NEAR(ReadElement(logits, n, v), ReadElement(whole, n, v), 1e-15);
    }
  }
}

TEST_F(Reference, AdamWFirstStepMovesByTheLearningRate) {
  // After bias correction the first direction is the gradient's sign; decay is added to it.
  double master[] = {1, -2}, exp_avg[] = {0, 0}, exp_avg_sq[] = {0, 0}, grad[] = {0.5, -3};
  const auto vector = [](double* data) { return Vector{data, DType::kF64, 2}; };
  AdamWArgs args{vector(master), vector(exp_avg), vector(exp_avg_sq), vector(grad), {}};
  TestStepNumbers numbers(0.1, 1);
  args.step_numbers = numbers.vector(), args.eps = 0, args.weight_decay = 0.01;
  ops_->AdamW({&args, 1});
  EXPECT_NEAR(master[0], 1 - 0.1 * (1 + 0.01), 1e-12);
  EXPECT_NEAR(master[1], -2 - 0.1 * (-1 + 0.01 * -2), 1e-12);
}

TEST_F(Reference, AdamWGivesTheUpdateThatItWouldHaveSubtracted) {
  double master[] = {1, -2}, exp_avg[] = {0, 0}, exp_avg_sq[] = {0, 0}, grad[] = {0.5, -3};
  const auto vector = [](double* data) { return Vector{data, DType::kF64, 2}; };
  AdamWArgs args{vector(master), vector(exp_avg), vector(exp_avg_sq), vector(grad), {}};
  TestStepNumbers numbers(0.1, 1);
  args.update = args.grad, args.step_numbers = numbers.vector();
  args.eps = 0, args.weight_decay = 0.01;
  ops_->AdamW({&args, 1});
  EXPECT_NEAR(grad[0], 1 + 0.01, 1e-12);
  EXPECT_NEAR(grad[1], -1 + 0.01 * -2, 1e-12);
  EXPECT_EQ(master[0], 1);
  EXPECT_EQ(master[1], -2);
  ops_->AddScaled(-0.1, args.update, args.master);
  EXPECT_NEAR(master[0], 1 - 0.1 * (1 + 0.01), 1e-12);
}

}  // namespace
}  // namespace megascale::ops
