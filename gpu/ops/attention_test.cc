// The kernels of attention, on tensor cores and plain, against the float64 reference.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"

namespace megascale::gpu {
namespace {

using ops::AttentionArgs;
using ops::AttentionBackwardArgs;
using ops::TwinMatrix;
using ops::Twins;
using ops::TwinVector;
using tensor::DType;

struct Shape {
  int64_t batch, seq, heads, kv_heads, head_dim, window;
  int64_t document = 0;  // tokens of a document; 0: attention reaches over documents
};
void PrintTo(const Shape& s, std::ostream* out) {
  *out << "batch " << s.batch << " seq " << s.seq << " heads " << s.heads << "/" << s.kv_heads
       << " of " << s.head_dim << " window " << s.window << " documents of " << s.document;
}

// Heads of 64 and 128: sequences and windows around the tiles of 32 and 64.
constexpr Shape kTiledShapes[] = {
    {0, 64, 1, 1, 64, 0},       {1, 0, 1, 1, 64, 0},       {1, 1, 1, 1, 64, 0},
    {2, 31, 2, 1, 64, 0},       {1, 64, 2, 2, 128, 0},     {1, 65, 1, 1, 64, 0},
    {1, 130, 2, 1, 128, 0},     {1, 200, 4, 2, 64, 0},     {1, 70, 1, 1, 64, 1},
    {1, 150, 2, 1, 64, 33},     {1, 190, 1, 1, 128, 64},   {1, 140, 1, 1, 64, 65},
    {1, 100, 2, 2, 64, 500},    {2, 31, 2, 1, 64, 0, 7},   {1, 200, 2, 1, 64, 0, 75},
    {1, 150, 2, 1, 64, 33, 50}, {1, 190, 1, 1, 128, 0, 64}};
constexpr Shape kPlainShapes[] = {
    {0, 4, 2, 2, 8, 0},       {1, 0, 2, 2, 8, 0},      {1, 1, 1, 1, 1, 0},
    {2, 3, 2, 1, 4, 0},       {2, 31, 2, 2, 33, 0},    {1, 33, 3, 1, 40, 0},
    {1, 70, 2, 1, 16, 7},     {1, 100, 2, 2, 8, 32},   {1, 50, 2, 2, 8, 1000},
    {1, 40, 4, 2, 65, 0},     {1, 66, 2, 1, 256, 33},  {2, 33, 2, 1, 4, 0, 5},
    {1, 70, 2, 1, 16, 7, 12}, {1, 100, 2, 2, 8, 0, 40}};

// q, k and v are column ranges of one packed matrix, as a model has them.
struct AttentionTwins {
  AttentionTwins(Twins& twins, const Shape& s, int64_t padding)
      : shape(s),
        q_width(s.heads * s.head_dim),
        k_width(s.kv_heads * s.head_dim),
        packed(twins.Input(s.batch * s.seq, q_width + 2 * k_width, padding, 2)),
        out(twins.Output(s.batch * s.seq, q_width, padding)),
        log_sum_exp(twins.FloatOutputVector(s.batch * s.heads * s.seq)),
        d_out(twins.Input(s.batch * s.seq, q_width, padding)),
        d_packed(twins.Output(s.batch * s.seq, q_width + 2 * k_width, padding)),
        begins(static_cast<size_t>(s.batch * s.seq)) {
    // Each sequence begins within a document, at another place of it.
    for (int64_t n = 0; s.document > 0 && n < s.batch * s.seq; ++n) {
      const int64_t before = n / s.seq * 3 + 2, position = n % s.seq;
      const int64_t begin = (position + before) / s.document * s.document - before;
      begins[static_cast<size_t>(n)] = static_cast<int32_t>(std::max<int64_t>(0, begin));
    }
  }

  template <typename Side>
  AttentionArgs Forward(Side side) const {
    return {.batch = shape.batch,
            .seq = shape.seq,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .window = shape.window,
            .q = side(packed.Cols(0, q_width)),
            .k = side(packed.Cols(q_width, k_width)),
            .v = side(packed.Cols(q_width + k_width, k_width)),
            .out = side(out),
            .log_sum_exp = side(log_sum_exp),
            .document_begins = Begins()};
  }
  tensor::Vector Begins() const {
    if (shape.document == 0) return {};
    return {const_cast<int32_t*>(begins.data()), DType::kI32, out.exact.rows};
  }
  template <typename Side>
  AttentionBackwardArgs Backward(Side side) const {
    return {.forward = Forward(side),
            .d_out = side(d_out),
            .d_q = side(d_packed.Cols(0, q_width)),
            .d_k = side(d_packed.Cols(q_width, k_width)),
            .d_v = side(d_packed.Cols(q_width + k_width, k_width))};
  }

  Shape shape;
  int64_t q_width, k_width;
  TwinMatrix packed, out;
  TwinVector log_sum_exp;
  TwinMatrix d_out, d_packed;
  std::vector<int32_t> begins;
};

constexpr auto kExact = [](const auto& twin) { return twin.exact; };
constexpr auto kTested = [](const auto& twin) { return twin.tested; };

void CheckBothWays(DType dtype, const Shape& shape, int64_t padding) {
  SCOPED_TRACE(::testing::PrintToString(shape));
  Twins twins(dtype);
  const AttentionTwins attention(twins, shape, padding);
  const auto exact = ops::MakeReferenceOps();
  BlockLauncher launcher;
  exact->Attention(attention.Forward(kExact));
  Attention(launcher, attention.Forward(kTested));
  twins.ExpectClose("Attention", attention.out);
  twins.ExpectClose("Statistic", attention.log_sum_exp);
  exact->AttentionBackward(attention.Backward(kExact));
  AttentionBackward(launcher, attention.Backward(kTested));
  twins.ExpectClose("AttentionBackward", attention.d_packed);
}

TEST(AttentionTest, TilesOnTensorCoresMatch) {
  for (const Shape& shape : kTiledShapes) CheckBothWays(DType::kBF16, shape, /*padding=*/8);
}

TEST(AttentionTest, PlainRowsMatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kPlainShapes) CheckBothWays(dtype, shape, /*padding=*/3);
  }
}

TEST(AttentionTest, RowsThatAreNotAlignedArePlain) {
  CheckBothWays(DType::kBF16, {1, 70, 2, 1, 64, 0}, /*padding=*/3);
}

// Returns the bits of outputs and gradients.
std::string BitsOf(const Shape& shape, uint64_t seed) {
  Twins twins(DType::kBF16);
  const AttentionTwins attention(twins, shape, 8);
  BlockLauncher launcher(seed);
  Attention(launcher, attention.Forward(kTested));
  AttentionBackward(launcher, attention.Backward(kTested));
  std::string bits;
  for (const ops::Matrix& matrix : {attention.out.tested, attention.d_packed.tested}) {
    for (int64_t row = 0; row < matrix.rows; ++row) {
      bits.append(matrix.as<char>() + 2 * row * matrix.stride,
                  static_cast<size_t>(2 * matrix.cols));
    }
  }
  return bits;
}

TEST(AttentionTest, BitsDoNotDependOnTheOrderOfThreads) {
  for (const Shape& shape : {Shape{1, 100, 2, 1, 64, 0}, Shape{1, 40, 2, 1, 24, 9}}) {
    const std::string first = BitsOf(shape, 1);
    EXPECT_EQ(BitsOf(shape, 100), first);
    EXPECT_EQ(BitsOf(shape, 2000), first);
  }
}

// Three tiles and more, so that each buffer is used again.
TEST(AttentionTest, EachBarrierIsNeeded) {
  Twins twins(DType::kBF16);
  const AttentionTwins attention(twins, {1, 200, 1, 1, 64, 0}, 8);
  ExpectEachBarrierIsNeeded([&](Launcher& launcher) {
    Attention(launcher, attention.Forward(kTested));
    AttentionBackward(launcher, attention.Backward(kTested));
  });
}

}  // namespace
}  // namespace megascale::gpu
