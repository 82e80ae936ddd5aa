// MakeCpuOps' promises other than its results: repeated calls give the same bits, it starts no more
// threads than requested, and takes no memory within a step.
#include <dirent.h>

#include <array>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/testing/test_heap.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/testing/test_numbers.h"
#include "runtime/tensor/arena.h"

namespace megascale::ops {
namespace {

constexpr int64_t kTokens = 96, kSeq = 48, kHidden = 64, kHeads = 2, kVocabulary = 50;

// The operators of one layer and its update, on data that depends on the seed alone. `shift` moves
// every tensor by this many elements, out of alignment.
class Layer {
 public:
  Layer(DType dtype, int64_t shift)
      : dtype_(dtype), shift_(shift), arena_(*tensor::Arena::Create(size_t{4} << 20)) {
    x_ = Make(kTokens, kHidden), qkv_ = Make(kTokens, 3 * kHidden), out_ = Make(kTokens, kHidden);
    d_qkv_ = Make(kTokens, 3 * kHidden), weight_ = Make(3 * kHidden, kHidden);
    logits_ = Make(kTokens, kVocabulary);
    d_weight_ = Make(3 * kHidden, kHidden, DType::kF32);
    scale_ = Row(Make(1, kHidden));
    statistics_ = Row(Make(1, kTokens * kHeads, DType::kF32));
    mean_ = Row(Make(1, kTokens, DType::kF32)), rstd_ = Row(Make(1, kTokens, DType::kF32));
    sums_ = Row(Make(1, 3 * kHidden, DType::kF32)), more_ = Row(Make(1, 3 * kHidden, DType::kF32));
    grad_ = Row(Make(1, 3 * kHidden, DType::kF32));
    tokens_ = arena_.Allocate(DType::kI32, kTokens);
    for (int64_t i = 0; i < kTokens; ++i) tokens_.as<int32_t>()[i] = i * 31 % kVocabulary;
  }

  void RunProducts(Ops& ops) {
    MatMulArgs forward;
    forward.a = x_, forward.b = weight_, forward.c = qkv_;
    forward.transpose_b = Transpose::kYes;
    ops.MatMul(forward);
    MatMulArgs weights;
    weights.a = qkv_, weights.b = x_, weights.c = d_weight_;
    weights.transpose_a = Transpose::kYes;
    weights.accumulate = true;
    ops.MatMul(weights);
  }

  void RunKernels(Ops& ops) {
    NormArgs norm;
    norm.x = x_, norm.weight = scale_, norm.bias = scale_, norm.out = out_;
    norm.mean = mean_, norm.rstd = rstd_;
    ops.Norm(norm);
    AttentionBackwardArgs attention;
    AttentionArgs& forward = attention.forward;
    forward.batch = kTokens / kSeq, forward.seq = kSeq, forward.heads = forward.kv_heads = kHeads;
    forward.head_dim = kHidden / kHeads, forward.window = 20;
    forward.q = Cols(qkv_, 0), forward.k = Cols(qkv_, 1), forward.v = Cols(qkv_, 2);
    forward.out = out_, forward.log_sum_exp = statistics_;
    ops.Rotary({.seq = kSeq, .heads = kHeads, .head_dim = kHidden / kHeads, .x = forward.q});
    ops.Attention(forward);
    attention.d_out = x_;
    attention.d_q = Cols(d_qkv_, 0), attention.d_k = Cols(d_qkv_, 1);
    attention.d_v = Cols(d_qkv_, 2);
    ops.AttentionBackward(attention);
    ops.Activation({ActivationKind::kGelu, d_qkv_, qkv_});
    ops.AddColumnSums(d_qkv_, sums_);
    NormBackwardArgs backward;
    backward.x = x_, backward.weight = scale_, backward.mean = mean_, backward.rstd = rstd_;
    backward.d_out = out_, backward.d_x = Cols(d_qkv_, 0);
    backward.d_weight = {sums_.data, DType::kF32, kHidden};
    ops.NormBackward(backward);
    ops.CrossEntropy({logits_, tokens_, 0.5, true, Number(&loss_)});
    AdamWArgs step{sums_, more_, grad_, sums_, {}};
    TestStepNumbers numbers(0.1, 1);
    step.exp_avg_sq = grad_, step.step_numbers = numbers.vector();
    ops.AdamW({&step, 1});
    ops.AddScaled(0.1, more_, sums_);
    ops.AddSumOfSquares(sums_, Number(&loss_));
  }

  std::vector<double> Results() const {
    std::vector<double> results{loss_};
    for (const Matrix& matrix : {qkv_, out_, d_qkv_, logits_, d_weight_, AsMatrix(sums_)}) {
      for (int64_t i = 0; i < matrix.rows; ++i) {
        for (int64_t j = 0; j < matrix.cols; ++j) results.push_back(ReadElement(matrix, i, j));
      }
    }
    return results;
  }

 private:
  Matrix Make(int64_t rows, int64_t cols, DType dtype) {
    const Vector memory = arena_.Allocate(dtype, rows * cols + shift_);
    Matrix matrix{memory.as<char>() + shift_ * tensor::SizeOf(dtype), dtype, rows, cols, cols};
    for (int64_t i = 0; i < rows * cols; ++i) {
      state_ = state_ * 1664525 + 1013904223;
      const float value = static_cast<float>(state_ >> 8) * 0x1p-24f;
      if (dtype == DType::kF32) matrix.as<float>()[i] = value;
      if (dtype == DType::kBF16) matrix.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(value);
    }
    return matrix;
  }
  Matrix Make(int64_t rows, int64_t cols) { return Make(rows, cols, dtype_); }
  static Vector Row(const Matrix& matrix) { return {matrix.data, matrix.dtype, matrix.cols}; }
  static Matrix AsMatrix(const Vector& vector) {
    return {vector.data, vector.dtype, 1, vector.size, vector.size};
  }
  static Matrix Cols(Matrix packed, int64_t which) {
    packed.data = packed.as<char>() + which * kHidden * tensor::SizeOf(packed.dtype);
    packed.cols = kHidden;
    return packed;
  }

  DType dtype_;
  int64_t shift_;
  tensor::Arena arena_;
  uint32_t state_ = 1;
  double loss_ = 0;
  Matrix x_, qkv_, out_, d_qkv_, weight_, logits_, d_weight_;
  Vector scale_, statistics_, mean_, rstd_, sums_, more_, grad_, tokens_;
};

std::vector<double> RunLayer(Ops& ops, int64_t shift) {
  Layer layer(ops.compute(), shift);
  layer.RunProducts(ops);
  layer.RunKernels(ops);
  return layer.Results();
}

int CountThreads() {
  DIR* directory = opendir("/proc/self/task");
  int count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

class CpuOpsTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, CpuOpsTest, ::testing::Values(DType::kF32, DType::kBF16));

// Must run first, while no other test has started OpenMP's threads.
TEST_P(CpuOpsTest, OneThreadStartsNoOther) {
  const int before = CountThreads();
  auto ops = MakeCpuOps(GetParam(), 1);
  RunLayer(*ops, 0);
  EXPECT_EQ(CountThreads(), before);
}

TEST_P(CpuOpsTest, SameInputsGiveTheSameBits) {
  auto ops = MakeCpuOps(GetParam(), 1);
  const std::vector<double> first = RunLayer(*ops, 0);
  EXPECT_EQ(RunLayer(*ops, 0), first) << "called again";
  EXPECT_EQ(RunLayer(*ops, 1), first) << "at other addresses";
  EXPECT_EQ(RunLayer(*MakeCpuOps(GetParam(), 1), 3), first) << "another object";
  std::vector<double> elsewhere;
  std::thread([&] { elsewhere = RunLayer(*ops, 0); }).join();
  EXPECT_EQ(elsewhere, first) << "on another thread";
}

TEST_P(CpuOpsTest, KernelsTakeNoMemoryAfterTheFirstCall) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  auto ops = MakeCpuOps(GetParam(), 1);
  Layer layer(GetParam(), 0);
  layer.RunKernels(*ops);
  const base::HeapCalls before = base::CountHeapCalls();
  layer.RunKernels(*ops);
  const base::HeapCalls calls = base::CountHeapCalls() - before;
  EXPECT_EQ(calls.ours, 0);
  EXPECT_EQ(calls.libraries, 0);
  EXPECT_EQ(calls.mappings, 0);
}

TEST_P(CpuOpsTest, TwoThreadsGiveTheSameBitsAgain) {
  auto ops = MakeCpuOps(GetParam(), 2);
  const std::vector<double> first = RunLayer(*ops, 0);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(RunLayer(*ops, i % 2), first);
}

// Large enough for sgemm.
TEST(CpuOpsTest, LargeProductsGiveTheSameBitsAgain) {
  constexpr int64_t kRows = 300, kCols = 500, kDepth = 900, kMaxShift = 3;
  const auto run = [](Ops& ops, int64_t shift) {
    tensor::Arena arena = *tensor::Arena::Create(size_t{8} << 20);
    const auto make = [&](int64_t rows, int64_t cols) {
      const Vector memory = arena.Allocate(DType::kF32, rows * cols + kMaxShift);
      for (int64_t i = 0; i < rows * cols; ++i) {
        memory.as<float>()[shift + i] = static_cast<float>((i * 7919) % 1009) / 1009 - 0.5f;
      }
      return Matrix{memory.as<float>() + shift, DType::kF32, rows, cols, cols};
    };
    MatMulArgs args;
    args.a = make(kRows, kDepth), args.b = make(kDepth, kCols), args.c = make(kRows, kCols);
    ops.MatMul(args);
    const float* result = args.c.as<float>();
    return std::vector<float>(result, result + kRows * kCols);
  };
  for (const int num_threads : {1, 2}) {
    auto ops = MakeCpuOps(DType::kF32, num_threads);
    const std::vector<float> first = run(*ops, 0);
    for (const int64_t shift : {0, 1, 3, 0}) EXPECT_EQ(run(*ops, shift), first) << shift;
  }
}

TEST(CpuOps, ASumOfSquaresHasTheSameBitsWithAnyNumberOfThreads) {
  constexpr int64_t kSize = 1'000'003;
  tensor::Arena arena = *tensor::Arena::Create(size_t{8} << 20);
  const Vector x = arena.Allocate(DType::kF32, kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    x.as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 1009 - 0.5f;
  }
  double expected = 0;
  MakeCpuOps(DType::kF32, 1)->AddSumOfSquares(x, Number(&expected));
  for (const int num_threads : {2, 3, 8}) {
    double found = 0;
    MakeCpuOps(DType::kF32, num_threads)->AddSumOfSquares(x, Number(&found));
    EXPECT_EQ(found, expected) << num_threads;
  }
}

struct ProductShape {
  int64_t rows, cols, depth;
  Transpose transpose_a = Transpose::kNo, transpose_b = Transpose::kNo;
};
// The bytes that an fp32 product takes while it runs, and the bytes that CopiesOf counts
// beforehand.
struct TakenAndCounted {
  int64_t taken;
  int64_t counted;
};
TakenAndCounted BytesOf(const ProductShape& shape, int num_threads) {
  const auto& [rows, cols, depth, transpose_a, transpose_b] = shape;
  const auto bytes = [](int64_t m, int64_t n) {
    return tensor::Arena::BytesFor(DType::kF32, m * n);
  };
  tensor::Arena arena =
      *tensor::Arena::Create(bytes(rows, depth) + bytes(depth, cols) + bytes(rows, cols));
  const auto make = [&](int64_t m, int64_t n, Transpose transpose) {
    return transpose == Transpose::kYes ? arena.AllocateMatrix(DType::kF32, n, m)
                                        : arena.AllocateMatrix(DType::kF32, m, n);
  };
  MatMulArgs args;
  args.a = make(rows, depth, transpose_a), args.b = make(depth, cols, transpose_b);
  args.c = make(rows, cols, Transpose::kNo);
  args.transpose_a = transpose_a, args.transpose_b = transpose_b;
  KernelShapes shapes;
  const int64_t without = CpuKernelBytes(shapes, num_threads);
  shapes.products.push_back(args);
  auto ops = MakeCpuOps(DType::kF32, num_threads);
  ops->MatMul(args);
  const base::HeapCalls before = base::CountHeapCalls();
  ops->MatMul(args);
  return {.taken = (base::CountHeapCalls() - before).bytes_of_libraries,
          .counted = CpuKernelBytes(shapes, num_threads) - without};
}

// A rank's memory is computed before it starts.
TEST(CpuOpsTest, LargeProductsTakeNoMoreThanIsCounted) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  constexpr Transpose kNo = Transpose::kNo, kYes = Transpose::kYes;
  for (const int num_threads : {1, 2}) {
    for (const ProductShape& shape :
         {ProductShape{256, 256, 256}, ProductShape{257, 1100, 301}, ProductShape{1100, 300, 500},
          ProductShape{300, 901, 385, kNo, kYes}, ProductShape{700, 700, 900, kYes},
          ProductShape{1024, 3072, 768}, ProductShape{1024, 3072, 768, kNo, kYes},
          ProductShape{1024, 768, 3072}, ProductShape{3072, 768, 1024, kYes},
          ProductShape{768, 3072, 1024, kYes}, ProductShape{256, 22000, 400, kNo, kYes}}) {
      const TakenAndCounted bytes = BytesOf(shape, num_threads);
      EXPECT_LE(bytes.taken, bytes.counted)
          << shape.rows << " x " << shape.cols << " x " << shape.depth << " on " << num_threads;
    }
    // The instruction set decides whether, and how much, sgemm packs for the others. It packs this
    // one with SSE4.1, AVX2 and AVX-512.
    const TakenAndCounted packed = BytesOf({1537, 1537, 1537}, num_threads);
    EXPECT_LE(packed.taken, packed.counted);
    EXPECT_LT(packed.counted, 3 * packed.taken);
  }
}

TEST(CpuOpsDeathTest, SaysWhichArgumentDoesNotFit) {
  auto ops = MakeCpuOps(DType::kF32, 1);
  float data[12] = {};
  MatMulArgs args;
  args.a = {data, DType::kF32, 2, 3, 3};
  args.b = {data, DType::kF32, 2, 2, 2};
  args.c = {data, DType::kF32, 2, 2, 2};
  EXPECT_DEATH(ops->MatMul(args), "b is F32 \\[2, 2\\] with stride 2, expected F32 \\[3, 2\\]");
}

TEST(CpuOpsDeathTest, RefusesATokenOutsideTheVocabulary) {
  auto ops = MakeCpuOps(DType::kF32, 1);
  float logits[4] = {};
  int32_t target = 4;
  double loss = 0;
  EXPECT_DEATH(
      ops->CrossEntropy(
          {{logits, DType::kF32, 1, 4, 4}, {&target, DType::kI32, 1}, 1, true, Number(&loss)}),
      "outside the vocabulary");
}

// On every processor: jobs in fp64 are measured too.
TEST(MeasureMatMulCeiling, IsPositiveForEachType) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    EXPECT_GT(MeasureMatMulCeiling(dtype, 1, 0), 1e6);
  }
}

// Returns the arguments of a product of few rows: those of the reference, then those under test.
struct FewRowsProduct {
  FewRowsProduct(Twins* twins, int64_t m, int64_t n, int64_t k, bool float_result)
      : a(twins->Input(m, k, 3)),
        b(twins->Input(n, k, 5)),
        bias(twins->InputVector(n)),
        c(float_result ? twins->FloatOutput(m, n, 7) : twins->Output(m, n, 7)) {}

  MatMulArgs Exact() const {
    return {.a = a.exact,
            .b = b.exact,
            .c = c.exact,
            .transpose_b = Transpose::kYes,
            .bias = bias.exact};
  }
  MatMulArgs Tested(int64_t first_row, int64_t rows) const {
    const auto rows_of = [&](Matrix matrix) {
      matrix.data = matrix.as<char>() +
                    first_row * matrix.stride * static_cast<int64_t>(tensor::SizeOf(matrix.dtype));
      matrix.rows = rows;
      return matrix;
    };
    return {.a = rows_of(a.tested),
            .b = b.tested,
            .c = rows_of(c.tested),
            .transpose_b = Transpose::kYes,
            .bias = bias.tested,
            .few_rows = true};
  }

  TwinMatrix a, b;
  TwinVector bias;
  TwinMatrix c;
};

TEST(CpuGenerationTest, ProductsOfFewRowsMatchAndEachRowStandsAlone) {
  const auto exact = MakeReferenceOps();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto tested = MakeCpuOps(dtype, 2);
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                  {1, 300, 259},
                                  {3, 13, 64},
                                  {5, 200, 300},
                                  {32, 18, 33}}) {
      Twins twins(dtype, m * 100 + n);
      const FewRowsProduct product(&twins, m, n, k, n == 18);
      exact->MatMul(product.Exact());
      tested->MatMul(product.Tested(0, m));
      twins.ExpectClose("MatMul", product.c);
      for (int64_t row = 0; row < m; ++row) {
        std::vector<double> together;
        for (int64_t j = 0; j < n; ++j) together.push_back(ReadElement(product.c.tested, row, j));
        tested->MatMul(product.Tested(row, 1));
        for (int64_t j = 0; j < n; ++j) {
          ASSERT_EQ(ReadElement(product.c.tested, row, j), together[j]) << "row " << row;
        }
      }
    }
  }
}

struct CachedShape {
  int64_t heads, kv_heads, head_dim, window;
};

// Two sequences of up to 70 tokens; the second one is read in two parts.
void ExpectCachedAttentionMatches(DType dtype, const CachedShape& s) {
  constexpr int64_t kCapacity = 70;
  const auto exact = MakeReferenceOps(), tested = MakeCpuOps(dtype, 2);
  Twins twins(dtype, s.head_dim);
  const int64_t kv_cols = s.kv_heads * s.head_dim, cols = s.heads * s.head_dim;
  const TwinMatrix cached_k = twins.Input(2 * kCapacity, kv_cols);
  const TwinMatrix cached_v = twins.Input(2 * kCapacity, kv_cols);
  const auto run = [&](std::vector<int32_t> places) {
    const auto rows = static_cast<int64_t>(places.size());
    const TwinMatrix q = twins.Input(rows, cols, 3, 2), out = twins.Output(rows, cols, 5);
    const TwinMatrix kv = twins.Input(rows, 2 * kv_cols, 1, 2);
    CachedAttentionArgs args = {.heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_dim = s.head_dim,
                                .window = s.window,
                                .capacity = kCapacity};
    args.places = {places.data(), DType::kI32, rows};
    args.q = q.exact, args.out = out.exact;
    args.k = kv.Cols(0, kv_cols).exact, args.v = kv.Cols(kv_cols, kv_cols).exact;
    args.cached_k = cached_k.exact, args.cached_v = cached_v.exact;
    exact->CachedAttention(args);
    args.q = q.tested, args.out = out.tested;
    args.k = kv.Cols(0, kv_cols).tested, args.v = kv.Cols(kv_cols, kv_cols).tested;
    args.cached_k = cached_k.tested, args.cached_v = cached_v.tested;
    tested->CachedAttention(args);
    twins.ExpectClose("CachedAttention", out);
  };
  std::vector<int32_t> first(kCapacity - 1);
  std::iota(first.begin(), first.end(), 0);
  run(first);
  run({kCapacity, kCapacity + 1, kCapacity + 2});
  run({kCapacity + 3, kCapacity - 1});
}

TEST(CpuGenerationTest, CachedAttentionMatches) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const CachedShape& shape :
         {CachedShape{2, 2, 64, 0}, {6, 2, 24, 0}, {4, 1, 33, 5}, {1, 1, 1, 1}}) {
      ExpectCachedAttentionMatches(dtype, shape);
    }
  }
}

TEST(CpuGenerationTest, RotationAndEmbeddingTakePositionsFromPlaces) {
  const auto ops = MakeCpuOps(DType::kF32, 1), exact = MakeReferenceOps();
  Twins twins(DType::kF32);
  std::vector<int32_t> places = {5, 17, 0, 31};
  const Vector places_4 = {places.data(), DType::kI32, 4};
  const TwinMatrix x = twins.Input(4, 24), words = twins.Input(9, 24);
  const TwinMatrix positions = twins.Input(20, 24), out = twins.Output(4, 24);
  RotaryArgs rotary = {.seq = 16, .heads = 2, .head_dim = 12, .x = x.exact, .places = places_4};
  exact->Rotary(rotary);
  rotary.x = x.tested;
  ops->Rotary(rotary);
  twins.ExpectClose("Rotary", x);
  EmbeddingArgs embedding;
  embedding.seq = 16;
  embedding.tokens = twins.Tokens(4, 9), embedding.places = places_4;
  embedding.token_weight = words.exact, embedding.position_weight = positions.exact;
  embedding.out = out.exact;
  exact->Embedding(embedding);
  EXPECT_EQ(ReadElement(out.exact, 1, 3),
            ReadElement(words.exact, embedding.tokens.as<int32_t>()[1], 3) +
                ReadElement(positions.exact, 1, 3))
      << "17 mod 16";
  embedding.token_weight = words.tested, embedding.position_weight = positions.tested;
  embedding.out = out.tested;
  ops->Embedding(embedding);
  twins.ExpectClose("Embedding", out);
}

}  // namespace
}  // namespace megascale::ops
