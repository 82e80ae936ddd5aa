// The kernels of norms and column sums against the float64 reference.
#include <memory>
#include <string>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"

namespace megascale::gpu {
namespace {

using ops::NormArgs;
using ops::NormBackwardArgs;
using ops::NormKind;
using ops::TwinMatrix;
using ops::Twins;
using ops::TwinVector;
using tensor::DType;

struct RowShape {
  int64_t rows, cols;
};
// Around packs, around the 1,024 columns of a warp, and several blocks of rows.
constexpr RowShape kRowShapes[] = {{0, 8},    {1, 1},    {3, 17},   {5, 64},  {9, 100},
                                   {70, 600}, {6, 1024}, {6, 1025}, {5, 2304}};

constexpr auto kExact = [](const auto& twin) { return twin.exact; };
constexpr auto kTested = [](const auto& twin) { return twin.tested; };

// The tensors of a norm both ways. `gap`: elements between rows; each tensor has another multiple.
struct NormTwins {
  NormTwins(Twins& twins, NormKind the_kind, const RowShape& s, int64_t gap)
      : kind(the_kind),
        x(twins.Input(s.rows, s.cols, gap, 2)),
        delta(twins.Input(s.rows, s.cols, 2 * gap)),
        sum(twins.Output(s.rows, s.cols, gap)),
        out(twins.Output(s.rows, s.cols, 3 * gap)),
        d_out(twins.Input(s.rows, s.cols, gap)),
        d_x(twins.Input(s.rows, s.cols, 2 * gap)),
        weight(twins.InputVector(s.cols)),
        bias(twins.InputVector(s.cols)),
        mean(twins.FloatOutputVector(s.rows)),
        rstd(twins.FloatOutputVector(s.rows)),
        d_weight(twins.FloatVector(s.cols)),
        d_bias(twins.FloatVector(s.cols)) {}

  template <typename Side>
  NormArgs Forward(Side side, bool with_delta) const {
    NormArgs args;
    args.kind = kind;
    args.eps = 0.01;  // rows of one column have no variance: keep 1 / deviation moderate
    args.x = side(x);
    if (with_delta) args.delta = side(delta), args.sum = side(sum);
    args.weight = side(weight), args.out = side(out), args.rstd = side(rstd);
    if (kind == NormKind::kLayerNorm) args.bias = side(bias), args.mean = side(mean);
    return args;
  }
  template <typename Side>
  NormBackwardArgs Backward(Side side) const {
    NormBackwardArgs args;
    args.kind = kind;
    args.x = side(x), args.weight = side(weight), args.rstd = side(rstd);
    args.d_out = side(d_out), args.d_x = side(d_x), args.d_weight = side(d_weight);
    if (kind == NormKind::kLayerNorm) args.mean = side(mean), args.d_bias = side(d_bias);
    return args;
  }

  NormKind kind;
  TwinMatrix x, delta, sum, out, d_out, d_x;
  TwinVector weight, bias, mean, rstd, d_weight, d_bias;
};

class NormTest : public ::testing::TestWithParam<DType> {
 protected:
  void CheckForward(NormKind kind, const RowShape& shape, int64_t gap, bool with_delta) {
    SCOPED_TRACE(::testing::Message()
                 << shape.rows << " x " << shape.cols << " gap " << gap << " delta " << with_delta);
    Twins twins(GetParam());
    const NormTwins norm(twins, kind, shape, gap);
    exact_->Norm(norm.Forward(kExact, with_delta));
    Norm(launcher_, norm.Forward(kTested, with_delta));
    twins.ExpectClose("Norm", norm.out);
    twins.ExpectClose("Statistic", norm.rstd);
    if (kind == NormKind::kLayerNorm) twins.ExpectClose("Statistic", norm.mean);
    if (with_delta) twins.ExpectClose("Sum", norm.sum);
  }
  void CheckBackward(NormKind kind, const RowShape& shape, int64_t gap) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols << " gap " << gap);
    Twins twins(GetParam());
    const NormTwins norm(twins, kind, shape, gap);
    exact_->Norm(norm.Forward(kExact, false));
    Norm(launcher_, norm.Forward(kTested, false));
    exact_->NormBackward(norm.Backward(kExact));
    NormBackward(launcher_, norm.Backward(kTested));
    twins.ExpectClose("NormBackward", norm.d_x);
    twins.ExpectClose("NormBackward", norm.d_weight);
    if (kind == NormKind::kLayerNorm) twins.ExpectClose("NormBackward", norm.d_bias);
  }

  const std::unique_ptr<ops::Ops> exact_ = ops::MakeReferenceOps();
  BlockLauncher launcher_;
};
INSTANTIATE_TEST_SUITE_P(Gpu, NormTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(tensor::Name(info.param)); });

TEST_P(NormTest, ForwardMatches) {
  for (const RowShape& shape : kRowShapes) {
    for (const int64_t gap : {0, 3}) {
      for (const bool with_delta : {false, true}) {
        CheckForward(NormKind::kLayerNorm, shape, gap, with_delta);
        CheckForward(NormKind::kRmsNorm, shape, gap, with_delta);
      }
    }
  }
}

TEST_P(NormTest, BackwardMatches) {
  for (const RowShape& shape : kRowShapes) {
    for (const int64_t gap : {0, 3}) {
      CheckBackward(NormKind::kLayerNorm, shape, gap);
      CheckBackward(NormKind::kRmsNorm, shape, gap);
    }
  }
}

TEST_P(NormTest, TheWidestRowsMatch) {
  CheckForward(NormKind::kLayerNorm, {1, 16384}, /*gap=*/0, /*with_delta=*/true);
  CheckBackward(NormKind::kRmsNorm, {2, 16384}, /*gap=*/0);
  CheckForward(NormKind::kRmsNorm, {1, 12345}, /*gap=*/0, /*with_delta=*/false);
}

// The mean of the squares minus the square of the mean would lose all digits here.
TEST_P(NormTest, AVarianceFarFromZeroIsExact) {
  Twins twins(GetParam());
  const NormTwins norm(twins, NormKind::kLayerNorm, {4, 256}, 0);
  for (const bool is_exact : {true, false}) {
    const ops::Matrix x = is_exact ? norm.x.exact : norm.x.tested;
    for (int64_t i = 0; i < 4 * 256; ++i) {
      const float value = 4096.0f + static_cast<float>(32 * (i * i % 3));  // exact in bf16
      if (is_exact) {
        x.as<double>()[i] = value;
      } else if (x.dtype == DType::kF32) {
        x.as<float>()[i] = value;
      } else {
        x.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(value);
      }
    }
  }
  exact_->Norm(norm.Forward(kExact, false));
  Norm(launcher_, norm.Forward(kTested, false));
  twins.ExpectClose("Norm", norm.out);
}

TEST_P(NormTest, ColumnSumsMatch) {
  for (const RowShape& shape : {RowShape{0, 8}, RowShape{1, 1}, RowShape{3, 17}, RowShape{5, 64},
                                RowShape{33, 100}, RowShape{70, 600}, RowShape{300, 33}}) {
    for (const int64_t gap : {0, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols << " gap " << gap);
      Twins twins(GetParam());
      const TwinMatrix x = twins.Input(shape.rows, shape.cols, gap);
      const TwinVector out = twins.FloatVector(shape.cols);
      exact_->AddColumnSums(x.exact, out.exact);
      AddColumnSums(launcher_, x.tested, out.tested);
      twins.ExpectClose("ColumnSums", out);
    }
  }
}

// Returns the bits of all results for rows that lie `gap` elements apart.
std::string BitsOf(DType dtype, const RowShape& shape, int64_t gap, uint64_t seed) {
  Twins twins(dtype);
  const NormTwins norm(twins, NormKind::kLayerNorm, shape, gap);
  BlockLauncher launcher(seed);
  Norm(launcher, norm.Forward(kTested, /*with_delta=*/true));
  NormBackward(launcher, norm.Backward(kTested));
  AddColumnSums(launcher, norm.d_out.tested, norm.d_bias.tested);
  std::string bits;
  for (const TwinMatrix& twin : {norm.out, norm.sum, norm.d_x}) {
    const size_t element = SizeOf(dtype);
    for (int64_t row = 0; row < shape.rows; ++row) {
      bits.append(twin.tested.as<char>() + static_cast<size_t>(row * twin.tested.stride) * element,
                  static_cast<size_t>(shape.cols) * element);
    }
  }
  for (const TwinVector& twin : {norm.mean, norm.rstd, norm.d_weight, norm.d_bias}) {
    bits.append(twin.tested.as<char>(), static_cast<size_t>(twin.tested.bytes()));
  }
  return bits;
}

TEST_P(NormTest, BitsDependNeitherOnTheOrderOfThreadsNorOnAlignment) {
  for (const RowShape& shape : {RowShape{41, 520}, RowShape{9, 1104}}) {
    const std::string first = BitsOf(GetParam(), shape, /*gap=*/8, /*seed=*/1);
    EXPECT_EQ(BitsOf(GetParam(), shape, 8, 100), first);
    EXPECT_EQ(BitsOf(GetParam(), shape, 8, 2000), first);
    EXPECT_EQ(BitsOf(GetParam(), shape, 3, 1), first);
  }
}

// Rows of one warp and of several, and several rows for each.
TEST_P(NormTest, EachBarrierIsNeeded) {
  for (const RowShape& shape : {RowShape{16, 64}, RowShape{4, 1032}}) {
    Twins twins(GetParam());
    const NormTwins norm(twins, NormKind::kLayerNorm, shape, /*gap=*/8);
    if (shape.cols > 1024) {
      ExpectEachBarrierIsNeeded(
          [&](Launcher& launcher) { Norm(launcher, norm.Forward(kTested, /*with_delta=*/false)); });
    }
    ExpectEachBarrierIsNeeded(
        [&](Launcher& launcher) { NormBackward(launcher, norm.Backward(kTested)); });
    ExpectEachBarrierIsNeeded([&](Launcher& launcher) {
      AddColumnSums(launcher, norm.d_out.tested, norm.d_bias.tested);
    });
  }
}

}  // namespace
}  // namespace megascale::gpu
