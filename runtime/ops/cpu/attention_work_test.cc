// Attention's memory grows with the sequence, and its work with sequence times window. This test
// does not measure time.
//
// It makes work visible by an overflow: one key holds huge values, and so do the queries that must
// not be multiplied with it; the queries that may be are zero. The processor's overflow flag then
// shows an unnecessary product. bf16 products raise no flags on processors that have them. For
// these, and for all others, an infinite row shows the products with probabilities, which are 0 for
// unseen keys: 0 times infinity is NaN.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

namespace megascale::ops {
namespace {

constexpr int64_t kSeq = 2048, kHeadDim = 32, kKey = 1000;
// Kernels work in blocks, so queries up to this much farther away may be multiplied as well.
constexpr int64_t kSlack = 256;
constexpr double kHuge = 1e30;

// One head.
class Head {
 public:
  Head(DType dtype, int64_t window)
      : ops_(MakeCpuOps(dtype, 1)), arena_(*tensor::Arena::Create(size_t{8} << 20)) {
    const auto make = [&] { return arena_.AllocateMatrix(dtype, kSeq, kHeadDim); };
    args_.batch = args_.heads = args_.kv_heads = 1;
    args_.seq = kSeq;
    args_.head_dim = kHeadDim;
    args_.window = window;
    args_.q = make(), args_.k = make(), args_.v = make(), args_.out = make();
    args_.log_sum_exp = arena_.Allocate(DType::kF32, kSeq);
    backward_.d_out = make(), backward_.d_q = make(), backward_.d_k = make();
    backward_.d_v = make();
    for (const Matrix& zero : {args_.q, args_.k, args_.v, backward_.d_out}) {
      for (int64_t row = 0; row < kSeq; ++row) Fill(zero, row, 0);
    }
    Fill(args_.k, kKey, kHuge);
    backward_.forward = args_;
  }

  void MakeHuge(int64_t query) { Fill(args_.q, query, kHuge); }

  // Forward with an infinite value at kKey; backward with an infinite key and an infinite gradient
  // of the output there.
  void RunWithInfinities() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Fill(args_.k, kKey, 0);
    ops_->Attention(args_);  // backward reads its statistics
    Fill(args_.k, kKey, kInfinity);
    Fill(backward_.d_out, kKey, kInfinity);
    ops_->AttentionBackward(backward_);
    Fill(args_.k, kKey, 0);
    Fill(args_.v, kKey, kInfinity);
    ops_->Attention(args_);
  }
  // After RunWithInfinities: whether the result that a position got from the others is a number.
  bool OutIsFinite(int64_t query) const { return IsFinite(args_.out, query); }
  bool QueryGradientIsFinite(int64_t query) const { return IsFinite(backward_.d_q, query); }
  bool KeyGradientIsFinite(int64_t key) const { return IsFinite(backward_.d_k, key); }
  bool ValueGradientIsFinite(int64_t key) const { return IsFinite(backward_.d_v, key); }

  bool ForwardOverflows() {
    std::feclearexcept(FE_ALL_EXCEPT);
    ops_->Attention(args_);
    return std::fetestexcept(FE_OVERFLOW) != 0;
  }
  bool BackwardOverflows() {
    std::feclearexcept(FE_ALL_EXCEPT);
    ops_->AttentionBackward(backward_);
    return std::fetestexcept(FE_OVERFLOW) != 0;
  }

 private:
  static bool IsFinite(const Matrix& matrix, int64_t row) {
    for (int64_t i = row * matrix.stride; i < row * matrix.stride + matrix.cols; ++i) {
      const float value = matrix.dtype == DType::kF32
                              ? matrix.as<float>()[i]
                              : tensor::ToFloat(matrix.as<tensor::BFloat16>()[i]);
      if (!std::isfinite(value)) return false;
    }
    return true;
  }
  static void Fill(const Matrix& matrix, int64_t row, double value) {
    const int64_t begin = row * matrix.stride;
    for (int64_t i = begin; i < begin + matrix.cols; ++i) {
      if (matrix.dtype == DType::kF32) {
        matrix.as<float>()[i] = static_cast<float>(value);
      } else {
        matrix.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(value));
      }
    }
  }

  std::unique_ptr<Ops> ops_;
  tensor::Arena arena_;
  AttentionArgs args_;
  AttentionBackwardArgs backward_;
};

class AttentionWorkTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionWorkTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return std::string(tensor::Name(info.param).data());
                         });

TEST_P(AttentionWorkTest, NoQueryIsMultipliedWithAKeyFarOutsideItsWindow) {
  for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{512}}) {
    SCOPED_TRACE(window);
    Head seen(GetParam(), window);
    seen.MakeHuge(kKey);
    if (!seen.ForwardOverflows()) {
      ASSERT_EQ(GetParam(), DType::kBF16);
      GTEST_SKIP() << "this processor's products of bf16 raise no flags";
    }
    EXPECT_TRUE(seen.BackwardOverflows());

    Head unseen(GetParam(), window);
    const int64_t last = window == 0 ? kSeq : kKey + window - 1;
    for (int64_t query = 0; query < kSeq; ++query) {
      if (query < kKey - kSlack || query > last + kSlack) unseen.MakeHuge(query);
    }
    EXPECT_FALSE(unseen.ForwardOverflows());
    EXPECT_FALSE(unseen.BackwardOverflows());
  }
}

TEST_P(AttentionWorkTest, NoProbabilityFarOutsideAWindowIsMultiplied) {
  for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{512}}) {
    SCOPED_TRACE(window);
    Head head(GetParam(), window);
    head.RunWithInfinities();
    EXPECT_FALSE(head.OutIsFinite(kKey));
    EXPECT_FALSE(head.QueryGradientIsFinite(kKey));
    EXPECT_FALSE(head.KeyGradientIsFinite(kKey));
    EXPECT_FALSE(head.ValueGradientIsFinite(kKey));
    const int64_t reach = window == 0 ? kSeq : window - 1;
    for (int64_t row = 0; row < kSeq; ++row) {
      if (row < kKey - kSlack || row > kKey + reach + kSlack) {
        ASSERT_TRUE(head.OutIsFinite(row)) << row;
        ASSERT_TRUE(head.QueryGradientIsFinite(row)) << row;
      }
      if (row > kKey + kSlack || row < kKey - reach - kSlack) {
        ASSERT_TRUE(head.KeyGradientIsFinite(row)) << row;
        ASSERT_TRUE(head.ValueGradientIsFinite(row)) << row;
      }
    }
  }
}

// Operators take no other memory: see cpu_ops_test.
TEST_P(AttentionWorkTest, ScratchGrowsLinearlyWithTheSequence) {
  for (const int64_t window : {0, 100}) {
    AttentionArgs args;
    args.batch = 2, args.heads = 4, args.kv_heads = 2, args.head_dim = 40;
    args.window = window;
    float data = 0;
    args.q = {&data, GetParam(), 1, 1, 1};
    std::vector<int64_t> forward, backward;
    for (int64_t seq = 4096; seq <= 3 * 4096; seq += 4096) {
      args.seq = seq;
      forward.push_back(cpu::AttentionScratchSize(args));
      backward.push_back(cpu::AttentionBackwardScratchSize(args));
    }
    EXPECT_EQ(forward[2] - forward[1], forward[1] - forward[0]);
    EXPECT_EQ(backward[2] - backward[1], backward[1] - backward[0]);
    // At most six floats of each head's width per element, as rank_memory.h counts them.
    EXPECT_LE(forward[1] - forward[0], 4096 * 2 * 64);
    EXPECT_LE(backward[1] - backward[0], 4096 * 6 * 64);
  }
}

}  // namespace
}  // namespace megascale::ops
