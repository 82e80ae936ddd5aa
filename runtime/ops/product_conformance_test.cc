// Products, and their epilogues, against the float64 reference; see ops_conformance_test.cc.
#include "runtime/ops/testing/conformance_fixture.h"

namespace megascale::ops {
namespace {

struct ProductShape {
  int64_t m, n, k;
};
constexpr ProductShape kProductShapes[] = {
    {0, 5, 3},    {5, 0, 3},    {4, 5, 0},     {1, 1, 1},      {3, 1, 17},     {1, 33, 64},
    {17, 31, 65}, {64, 64, 64}, {96, 48, 300}, {128, 256, 32}, {261, 277, 259}};

class ProductConformance : public Conformance {
 protected:
  // `which`: 0 overwrites c, 1 adds to it, 2 adds a bias. Rows lie further apart than they are
  // long, unless `padding_` is 0.
  void Check(const ProductShape& s, Transpose a_transposed, Transpose b_transposed, int which,
             bool float_result) {
    SCOPED_TRACE(::testing::Message() << "m " << s.m << " n " << s.n << " k " << s.k << " which "
                                      << which << " float result " << float_result);
    Twins twins(dtype(), s.m * 1000 + s.n);
    const bool ta = a_transposed == Transpose::kYes, tb = b_transposed == Transpose::kYes;
    const TwinMatrix a = twins.Input(ta ? s.k : s.m, ta ? s.m : s.k, padding_);
    const TwinMatrix b = twins.Input(tb ? s.n : s.k, tb ? s.k : s.n, padding_);
    const TwinVector bias = twins.InputVector(s.n);
    const TwinMatrix c =
        which == 1 ? (float_result ? twins.Float(s.m, s.n, 7) : twins.Input(s.m, s.n, 7))
                   : (float_result ? twins.FloatOutput(s.m, s.n, 7) : twins.Output(s.m, s.n, 7));
    MatMulArgs args;
    args.transpose_a = a_transposed;
    args.transpose_b = b_transposed;
    args.accumulate = which == 1;
    args.a = a.exact, args.b = b.exact, args.c = c.exact;
    if (which == 2) args.bias = bias.exact;
    exact_->MatMul(args);
    args.a = a.tested, args.b = b.tested, args.c = c.tested;
    if (which == 2) args.bias = bias.tested;
    tested_->MatMul(args);
    twins.ExpectClose("MatMul", c);
  }

  int64_t padding_ = 3;
};

INSTANTIATE_TEST_SUITE_P(All, ProductConformance, ::testing::ValuesIn(AllTested()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ProductConformance, ProductsOfAllLayoutsMatch) {
  for (const ProductShape& shape : kProductShapes) {
    for (Transpose a : {Transpose::kNo, Transpose::kYes}) {
      for (Transpose b : {Transpose::kNo, Transpose::kYes}) {
        for (int which : {0, 1, 2}) {
          Check(shape, a, b, which, false);
          Check(shape, a, b, which, true);
        }
      }
    }
  }
}

// Sizes at which operands are packed, or rearranged and multiplied in parts.
TEST_P(ProductConformance, ProductsOfRearrangedOperandsMatch) {
  padding_ = 0;
  Check({800, 258, 257}, Transpose::kYes, Transpose::kNo, /*which=*/1, /*float_result=*/true);
  Check({300, 321, 290}, Transpose::kNo, Transpose::kNo, /*which=*/0, /*float_result=*/false);
  if (dtype() == DType::kF32) return;
  Check({256, 256, 8300}, Transpose::kNo, Transpose::kNo, /*which=*/0, /*float_result=*/false);
}

// Sizes at which oneDNN's sgemm packs both operands, and sums in several blocks; shared by columns
// and by rows.
TEST_P(ProductConformance, LargeProductsMatch) {
  if (dtype() != DType::kF32) return;  // sgemm multiplies fp32 only
  for (const int which : {0, 2}) {
    Check({1100, 1200, 800}, Transpose::kNo, Transpose::kYes, which, /*float_result=*/false);
  }
  for (const int which : {0, 1, 2}) {
    Check({1100, 600, 800}, Transpose::kNo, Transpose::kNo, which, /*float_result=*/false);
  }
  Check({600, 1100, 800}, Transpose::kYes, Transpose::kNo, /*which=*/1, /*float_result=*/true);
}

constexpr ProductShape kEpilogueShapes[] = {
    {0, 5, 3}, {4, 5, 0}, {3, 1, 17}, {17, 31, 65}, {96, 48, 300}};

// `apart`: 1 where rows have other numbers between them, else 0.
struct EpilogueCase {
  int64_t m, n, k, apart;
};
constexpr EpilogueCase kEpilogueCases[] = {{0, 5, 3, 1},    {4, 5, 0, 1},     {3, 1, 17, 1},
                                           {17, 31, 65, 1}, {96, 48, 300, 1}, {96, 48, 300, 0},
                                           {17, 64, 65, 0}, {4, 8, 0, 0}};

// Rows lie apart, or one behind the other, which lets a device make an epilogue with the product.
TEST_P(ProductConformance, AnActivationOfTheProductMatches) {
  for (const auto& [m, n, k, apart] : kEpilogueCases) {
    for (const ActivationKind kind : kActivationKinds) {
      SCOPED_TRACE(::testing::Message() << m << ", " << n << ", " << k << " kind " << int(kind));
      Twins twins(dtype());
      const int64_t width = kind == ActivationKind::kSwiGlu ? 2 * n : n;
      const TwinMatrix a = twins.Input(m, k, 3 * apart, 0.1), b = twins.Input(width, k, apart);
      const TwinVector bias = twins.InputVector(width);
      const TwinMatrix c = twins.Output(m, width, 2 * apart),
                       activated = twins.Output(m, n, 5 * apart);
      const auto run = [&](Ops& ops, auto side) {
        ops.MatMul({.a = side(a),
                    .b = side(b),
                    .c = side(c),
                    .transpose_b = Transpose::kYes,
                    .bias = side(bias),
                    .activation = kind,
                    .activated = side(activated)});
      };
      run(*exact_, [](const auto& twin) { return twin.exact; });
      run(*tested_, [](const auto& twin) { return twin.tested; });
      twins.ExpectClose("MatMul", c);
      twins.ExpectClose("Epilogue", activated);
    }
  }
}

TEST_P(ProductConformance, TheGradientOfAnActivationMatches) {
  for (const auto& [m, n, k, apart] : kEpilogueCases) {
    for (const ActivationKind kind : kActivationKinds) {
      SCOPED_TRACE(::testing::Message() << m << ", " << n << ", " << k << " kind " << int(kind));
      Twins twins(dtype());
      const int64_t width = kind == ActivationKind::kSwiGlu ? 2 * n : n;
      const TwinMatrix d_out = twins.Input(m, k, 3 * apart, 0.1), weight = twins.Input(k, n, apart);
      const TwinMatrix in = twins.Input(m, width, 2 * apart, 3),
                       d_in = twins.Output(m, width, 4 * apart);
      const TwinMatrix scratch = twins.Output(m, n, 5 * apart);
      const auto run = [&](Ops& ops, auto side) {
        ops.MatMul({.a = side(d_out),
                    .b = side(weight),
                    .c = side(scratch),
                    .bias = {},
                    .activation = kind,
                    .activation_in = side(in),
                    .d_activation_in = side(d_in)});
      };
      run(*exact_, [](const auto& twin) { return twin.exact; });
      run(*tested_, [](const auto& twin) { return twin.tested; });
      twins.ExpectClose("Epilogue", d_in);
    }
  }
}

TEST_P(ProductConformance, TheGradientOfABiasMatchesBesideThatOfTheWeight) {
  for (const auto& [m, n, k] : kEpilogueShapes) {
    SCOPED_TRACE(::testing::Message() << m << ", " << n << ", " << k);
    Twins twins(dtype());
    const TwinMatrix d_out = twins.Input(k, m, 3), in = twins.Input(k, n, 1);
    const TwinMatrix d_weight = twins.Float(m, n, 2);
    const TwinVector d_bias = twins.FloatVector(m);
    const auto run = [&](Ops& ops, auto side) {
      ops.MatMul({.a = side(d_out),
                  .b = side(in),
                  .c = side(d_weight),
                  .transpose_a = Transpose::kYes,
                  .accumulate = true,
                  .bias = {},
                  .d_bias = side(d_bias)});
    };
    run(*exact_, [](const auto& twin) { return twin.exact; });
    run(*tested_, [](const auto& twin) { return twin.tested; });
    twins.ExpectClose("MatMul", d_weight);
    twins.ExpectClose("ColumnSums", d_bias);
  }
}

}  // namespace
}  // namespace megascale::ops
