// Elementwise kernels against the float64 reference.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"

namespace megascale::gpu {
namespace {

using ops::ActivationKind;
using ops::TwinMatrix;
using ops::Twins;
using ops::TwinVector;
using tensor::DType;
using tensor::Matrix;
using tensor::Vector;

constexpr ActivationKind kActivationKinds[] = {ActivationKind::kGelu, ActivationKind::kGeluTanh,
                                               ActivationKind::kSwiGlu};

struct RowShape {
  int64_t rows, cols;
};
// Around packs of 4 and 8 and blocks of 256 packs.
constexpr RowShape kRowShapes[] = {{0, 8},  {3, 0},   {1, 1},    {3, 17},
                                   {5, 64}, {9, 100}, {70, 600}, {2, 2056}};

// Gaps between rows: in turn different ones, which leave rows unaligned, none, and whole packs.
struct Gaps {
  int64_t a, b, c;
};
constexpr Gaps kGaps[] = {{3, 1, 2}, {0, 0, 0}, {8, 16, 24}};

class ElementwiseTest : public ::testing::TestWithParam<DType> {
 protected:
  // Calls `check(shape, gaps)` for all of them.
  template <typename Check>
  void ForEachShape(const Check& check) {
    for (const RowShape& shape : kRowShapes) {
      for (const Gaps& gaps : kGaps) {
        SCOPED_TRACE(::testing::Message()
                     << shape.rows << " x " << shape.cols << " gap " << gaps.a);
        check(shape, gaps);
      }
    }
  }

  const std::unique_ptr<ops::Ops> exact_ = ops::MakeReferenceOps();
  BlockLauncher launcher_;
};
INSTANTIATE_TEST_SUITE_P(Gpu, ElementwiseTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(tensor::Name(info.param)); });

TEST_P(ElementwiseTest, SumsMatch) {
  ForEachShape([&](const RowShape& shape, const Gaps& gaps) {
    Twins twins(GetParam());
    const TwinMatrix a = twins.Input(shape.rows, shape.cols, gaps.a);
    const TwinMatrix b = twins.Input(shape.rows, shape.cols, gaps.b);
    const TwinMatrix out = twins.Output(shape.rows, shape.cols, gaps.c);
    exact_->Add(a.exact, b.exact, out.exact);
    Add(launcher_, a.tested, b.tested, out.tested);
    twins.ExpectClose("Sum", out);
    exact_->Add(a.exact, b.exact, a.exact);
    Add(launcher_, a.tested, b.tested, a.tested);
    twins.ExpectClose("Sum", a);
  });
}

TEST_P(ElementwiseTest, ActivationsMatchForwardAndBackward) {
  ForEachShape([&](const RowShape& shape, const Gaps& gaps) {
    for (const ActivationKind kind : kActivationKinds) {
      SCOPED_TRACE(static_cast<int>(kind));
      Twins twins(GetParam());
      const int64_t in_cols = kind == ActivationKind::kSwiGlu ? 2 * shape.cols : shape.cols;
      const TwinMatrix in = twins.Input(shape.rows, in_cols, gaps.a, 8);
      const TwinMatrix out = twins.Output(shape.rows, shape.cols, gaps.b);
      const TwinMatrix d_out = twins.Input(shape.rows, shape.cols, gaps.c);
      const TwinMatrix d_in = twins.Output(shape.rows, in_cols, gaps.a);
      exact_->Activation({kind, in.exact, out.exact});
      Activation(launcher_, {kind, in.tested, out.tested});
      twins.ExpectClose("Activation", out);
      exact_->ActivationBackward({kind, in.exact, d_out.exact, d_in.exact});
      ActivationBackward(launcher_, {kind, in.tested, d_out.tested, d_in.tested});
      twins.ExpectClose("Activation", d_in);
    }
  });
}

// Far from 0 the slope is 0 or 1, without a detour through infinity.
TEST_P(ElementwiseTest, ActivationsOfLargeNumbersAreFinite) {
  Twins twins(GetParam());
  const TwinMatrix in = twins.Input(1, 16, 0, 1e4), out = twins.Output(1, 8);
  const TwinMatrix d_out = twins.Input(1, 8), d_in = twins.Output(1, 16);
  for (const ActivationKind kind : kActivationKinds) {
    const int64_t in_cols = kind == ActivationKind::kSwiGlu ? 16 : 8;
    const TwinMatrix x = in.Cols(0, in_cols), d_x = d_in.Cols(0, in_cols);
    exact_->Activation({kind, x.exact, out.exact});
    Activation(launcher_, {kind, x.tested, out.tested});
    twins.ExpectClose("Activation", out);
    exact_->ActivationBackward({kind, x.exact, d_out.exact, d_x.exact});
    ActivationBackward(launcher_, {kind, x.tested, d_out.tested, d_x.tested});
    twins.ExpectClose("Activation", d_x);
  }
}

// A diverged run must show, whatever the bits of its NaN.
TEST_P(ElementwiseTest, NanStaysNan) {
  for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    Twins twins(GetParam());
    const TwinMatrix in = twins.Input(1, 40), out = twins.Output(1, 40);
    if (GetParam() == DType::kF32) std::memcpy(in.tested.as<float>() + 7, &bits, sizeof(bits));
    if (GetParam() == DType::kBF16) in.tested.as<uint16_t>()[7] = bits >> 16;
    for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
      Activation(launcher_, {kind, in.tested, out.tested});
      EXPECT_TRUE(std::isnan(ops::ReadElement(out.tested, 0, 7)));
      EXPECT_FALSE(std::isnan(ops::ReadElement(out.tested, 0, 8)));
    }
    Add(launcher_, in.tested, in.tested, out.tested);
    EXPECT_TRUE(std::isnan(ops::ReadElement(out.tested, 0, 7)));
  }
}

TEST_P(ElementwiseTest, RotaryMatches) {
  const std::pair<int64_t, int64_t> sizes[] = {{2, 0},   {6, 0},    {32, 0}, {64, 0},
                                               {64, 16}, {128, 64}, {6, 2},  {8, 0}};
  for (const auto& [head_dim, rotary_dim] : sizes) {
    for (const int64_t gap : {0, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << head_dim << ", " << rotary_dim << " gap " << gap);
      Twins twins(GetParam());
      ops::RotaryArgs args;
      args.seq = 65, args.heads = 5, args.head_dim = head_dim, args.rotary_dim = rotary_dim;
      if (head_dim == 128) args.scaling = {8, 0.9, -0.01, -0.3, 1.3};
      const TwinMatrix x = twins.Input(2 * args.seq, args.heads * head_dim, gap);
      for (const bool inverse : {false, true}) {
        args.inverse = inverse;
        args.x = x.exact;
        exact_->Rotary(args);
        args.x = x.tested;
        Rotary(launcher_, args);
        twins.ExpectClose("Rotary", x);
        if (GetParam() == DType::kBF16) break;  // a second turn would add a second rounding
      }
    }
  }
}

TEST_P(ElementwiseTest, RotaryOfNoRowsAndOfFewerThanTheSequence) {
  for (const int64_t rows : {0, 1, 3}) {
    Twins twins(GetParam());
    const TwinMatrix x = twins.Input(rows, 16);
    ops::RotaryArgs args = {.seq = 100, .heads = 1, .head_dim = 16, .x = x.exact};
    exact_->Rotary(args);
    args.x = x.tested;
    Rotary(launcher_, args);
    twins.ExpectClose("Rotary", x);
  }
}

// The last positions of a long sequence are as exact as the first.
TEST(RotaryTest, AnglesOfThousandsOfTurnsAreExact) {
  constexpr int64_t kSeq = 20000;
  Twins twins(DType::kF32);
  const TwinMatrix x = twins.Input(kSeq, 8);
  ops::RotaryArgs args = {.seq = kSeq, .heads = 1, .head_dim = 8, .theta = 500000, .x = x.exact};
  BlockLauncher launcher;
  ops::MakeReferenceOps()->Rotary(args);
  args.x = x.tested;
  Rotary(launcher, args);
  twins.ExpectClose("Rotary", x);
}

TEST(AddScaledTest, Matches) {
  for (const int64_t size : {0, 1, 31, 64, 1024, 5003}) {
    SCOPED_TRACE(size);
    Twins twins(DType::kBF16);
    const TwinVector x = twins.FloatVector(size), out = twins.FloatVector(size);
    BlockLauncher launcher;
    ops::MakeReferenceOps()->AddScaled(-0.3, x.exact, out.exact);
    AddScaled(launcher, -0.3, x.tested, out.tested);
    twins.ExpectClose("AddScaled", out);
  }
}

// All pairs of types, at aligned and other addresses, give the bits of the reference.
TEST(CastTest, AllPairsOfTypesRoundAsTheReference) {
  constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kI32};
  const auto reference = ops::MakeReferenceOps();
  BlockLauncher launcher;
  for (const int64_t size : {0, 1, 31, 64, 3001}) {
    for (const DType from_type : kTypes) {
      for (const DType to_type : kTypes) {
        for (const int64_t offset : {0, 1}) {
          SCOPED_TRACE(::testing::Message() << tensor::Name(from_type) << " to "
                                            << tensor::Name(to_type) << " of " << size);
          std::vector<double> numbers(static_cast<size_t>(size));
          for (size_t i = 0; i < numbers.size(); ++i) {
            numbers[i] = std::sin(static_cast<double>(i)) * 1000;
          }
          const auto bytes = static_cast<size_t>(offset + size) * 8 + 16;
          std::vector<char> from(bytes), exact(bytes), tested(bytes);
          const auto at = [&](std::vector<char>& memory, DType dtype) {
            return Vector{memory.data() + offset * static_cast<int64_t>(SizeOf(dtype)), dtype,
                          size};
          };
          reference->Cast({numbers.data(), DType::kF64, size}, at(from, from_type));
          reference->Cast(at(from, from_type), at(exact, to_type));
          Cast(launcher, at(from, from_type), at(tested, to_type));
          EXPECT_EQ(tested, exact);
        }
      }
    }
  }
}

TEST(CastTest, KeepsNanAndInfinity) {
  std::vector<float> wide(40, std::nanf("0x7fffff"));
  wide[1] = std::numeric_limits<float>::infinity();
  wide[2] = -std::numeric_limits<float>::infinity();
  std::vector<tensor::BFloat16> narrow(40);
  BlockLauncher launcher;
  Cast(launcher, {wide.data(), DType::kF32, 40}, {narrow.data(), DType::kBF16, 40});
  EXPECT_EQ(tensor::ToFloat(narrow[1]), wide[1]);
  EXPECT_EQ(tensor::ToFloat(narrow[2]), wide[2]);
  for (size_t i = 3; i < 40; ++i) EXPECT_TRUE(std::isnan(tensor::ToFloat(narrow[i]))) << i;
}

// Returns the bits of every operator's result.
std::string BitsOf(DType dtype, uint64_t seed) {
  Twins twins(dtype);
  BlockLauncher launcher(seed);
  const Matrix x = twins.Input(9, 96).tested, out = twins.Output(9, 96).tested;
  std::string bits;
  const auto keep = [&] {
    bits.append(out.as<char>(), static_cast<size_t>(9 * 96) * SizeOf(dtype));
  };
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
    Activation(launcher, {kind, x, out});
    keep();
    ActivationBackward(launcher, {kind, x, x, out});
    keep();
  }
  Add(launcher, x, x, out);
  Rotary(launcher, {.seq = 5, .heads = 3, .head_dim = 32, .x = out});
  keep();
  EXPECT_TRUE(launcher.seen().empty()) << "these kernels have no barriers to leave out";
  return bits;
}

TEST_P(ElementwiseTest, BitsDoNotDependOnTheOrderOfThreads) {
  const std::string first = BitsOf(GetParam(), 1);
  EXPECT_EQ(BitsOf(GetParam(), 100), first);
  EXPECT_EQ(BitsOf(GetParam(), 2000), first);
}

}  // namespace
}  // namespace megascale::gpu
