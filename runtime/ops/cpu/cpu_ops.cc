// The CPU implementation: checks arguments, divides rows among threads, owns scratch.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/base/benchmark_timer.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/matmul.h"
#include "runtime/ops/cpu/threads.h"
#include "runtime/ops/epilogues.h"
#include "runtime/ops/host_numbers.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

namespace megascale::ops {
namespace {

// Vectors are split at cache lines, so that threads do not share any.
constexpr int64_t kElementGrain = 64;
// With fewer elements, another thread costs more than it gains.
constexpr int64_t kElementsPerThread = 16384;
// Columns of a product of few rows are computed together.
constexpr int64_t kColumnGrain = 8;

template <typename T>
T* Grow(std::vector<T>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  return memory.data();
}

// `count`: rows or columns that stand for tokens.
void CheckTokens(const Vector& tokens, const VocabularyPart& part, int64_t count) {
  const int64_t limit = part.vocab_size == 0 ? count : part.vocab_size;
  for (int64_t i = 0; i < tokens.size; ++i) {
    const int32_t token = tokens.as<int32_t>()[i];
    MEGASCALE_CHECK_MSG(token >= 0 && token < limit, "a token lies outside the vocabulary");
  }
}

// Checks that each row's document begins at the row or before it, and not before that of the row
// before it.
void CheckDocuments(const Vector& document_begins, int64_t seq) {
  for (int64_t n = 0; n < document_begins.size; ++n) {
    const int64_t begin = document_begins.as<int32_t>()[n], position = n % seq;
    const int64_t before = position > 0 ? document_begins.as<int32_t>()[n - 1] : 0;
    MEGASCALE_CHECK_MSG(begin >= before && begin <= position, "a document begins behind a row");
  }
}

int64_t LastPosition(const CachedAttentionArgs& args) {
  int64_t last = 0;
  for (int64_t n = 0; n < args.places.size; ++n) {
    last = std::max(last, args.places.as<int32_t>()[n] % args.capacity);
  }
  return last;
}

class CpuOps final : public Ops {
 public:
  CpuOps(DType compute, int num_threads)
      : compute_(compute), num_threads_(num_threads), products_(num_threads) {
    MEGASCALE_CHECK(compute == DType::kF32 || compute == DType::kBF16);
    MEGASCALE_CHECK(num_threads >= 1);
  }

  DType compute() const override { return compute_; }

  void MatMul(const MatMulArgs& args) override {
    CheckArguments(args, compute_);
    if ((args.transpose_a == Transpose::kYes ? args.a.rows : args.a.cols) == 0) {
      FillWithBias(args);
    } else if (args.few_rows) {
      const int threads = ThreadsFor(args.b.rows * args.b.cols);
      cpu::ForEachPart(threads, args.c.cols, kColumnGrain,
                       [&](int part, cpu::Range cols) { cpu::FewRows(args, cols); });
    } else {
      products_.Run(args);
    }
    RunEpilogues(args, this);
  }

  void Norm(const NormArgs& args) override {
    CheckArguments(args, compute_);
    ForEachRow(args.x, [&](int part, cpu::Range rows) { cpu::Norm(args, rows); });
  }

  void NormBackward(const NormBackwardArgs& args) override;

  void Attention(const AttentionArgs& args) override {
    CheckArguments(args, compute_);
    CheckDocuments(args.document_begins, args.seq);
    const int64_t size = cpu::AttentionScratchSize(args);
    float* scratch = Grow(floats_, size * num_threads_);
    cpu::ForEachPart(num_threads_, args.batch * args.kv_heads, 1, [&](int part, cpu::Range groups) {
      cpu::Attention(args, scratch + part * size, groups);
    });
  }

  void AttentionBackward(const AttentionBackwardArgs& args) override {
    CheckArguments(args, compute_);
    CheckDocuments(args.forward.document_begins, args.forward.seq);
    const int64_t size = cpu::AttentionBackwardScratchSize(args.forward);
    float* scratch = Grow(floats_, size * num_threads_);
    cpu::ForEachPart(num_threads_, args.forward.batch * args.forward.kv_heads, 1,
                     [&](int part, cpu::Range groups) {
                       cpu::AttentionBackward(args, scratch + part * size, groups);
                     });
  }

  void CachedAttention(const CachedAttentionArgs& args) override {
    CheckArguments(args, compute_);
    cpu::FillCache(args);
    const int64_t size = cpu::CachedAttentionScratchSize(args);
    float* scratch = Grow(floats_, size * num_threads_);
    const int64_t count = args.q.rows * args.kv_heads;
    const int threads = count > 1 ? ThreadsFor(args.q.rows * LastPosition(args) * args.k.cols) : 1;
    cpu::ForEachPart(threads, count, 1, [&](int part, cpu::Range heads) {
      cpu::CachedAttention(args, scratch + part * size, heads);
    });
  }

  void Rotary(const RotaryArgs& args) override {
    CheckArguments(args, compute_);
    PrepareRotary(args);
    ForEachRow(args.x, [&](int part, cpu::Range rows) {
      cpu::Rotary(args, cosines_.data(), sines_.data(), rows);
    });
  }

  void Activation(const ActivationArgs& args) override {
    CheckArguments(args, compute_);
    ForEachRow(args.in, [&](int part, cpu::Range rows) { cpu::Activation(args, rows); });
  }

  void ActivationBackward(const ActivationBackwardArgs& args) override {
    CheckArguments(args, compute_);
    ForEachRow(args.in, [&](int part, cpu::Range rows) { cpu::ActivationBackward(args, rows); });
  }

  void Embedding(const EmbeddingArgs& args) override {
    CheckArguments(args, compute_);
    CheckTokens(args.tokens, args.vocabulary, args.token_weight.rows);
    CheckDocuments(args.document_begins, args.seq);
    ForEachRow(args.out, [&](int part, cpu::Range rows) { cpu::Embedding(args, rows); });
  }

  void EmbeddingBackward(const EmbeddingBackwardArgs& args) override {
    CheckArguments(args, compute_);
    CheckTokens(args.tokens, args.vocabulary, args.d_token_weight.rows);
    CheckDocuments(args.document_begins, args.seq);
    ForEachColumn(args.d_out,
                  [&](int part, cpu::Range cols) { cpu::EmbeddingBackward(args, cols); });
  }

  void LogitStatistics(const LogitStatisticsArgs& args) override {
    CheckArguments(args, compute_);
    CheckTokens(args.targets, args.vocabulary, args.logits.cols);
    ForEachRow(args.logits, [&](int part, cpu::Range rows) { cpu::LogitStatistics(args, rows); });
  }

  void CrossEntropy(const CrossEntropyArgs& args) override {
    CheckArguments(args, compute_);
    CheckTokens(args.targets, args.vocabulary, args.logits.cols);
    const int64_t size = cpu::PowersSize(args.logits.cols);
    double* losses = Grow(row_losses_, args.logits.rows);
    float* powers = Grow(floats_, args.backward && !args.statistics ? size * num_threads_ : 0);
    ForEachRow(args.logits, [&](int part, cpu::Range rows) {
      if (args.statistics) {
        cpu::CrossEntropyOfPart(args, losses, rows);
      } else {
        cpu::CrossEntropy(args, {.row_losses = losses, .powers = powers + part * size}, rows);
      }
    });
    for (int64_t n = 0; n < args.logits.rows; ++n) *args.loss_sum.as<double>() += losses[n];
  }

  void AdamW(absl::Span<const AdamWArgs> list) override {
    for (const AdamWArgs& args : list) CheckArguments(args, compute_);
    ForEachElementOf(list, [](const AdamWArgs& args, cpu::Range elements) {
      if (IsFinite(args.step_numbers)) cpu::AdamW(args, elements);
    });
  }

  void TrustStep(absl::Span<const TrustStepArgs> list) override {
    for (const TrustStepArgs& args : list) CheckArguments(args, compute_);
    ForEachElementOf(list, [](const TrustStepArgs& args, cpu::Range elements) {
      if (!IsFinite(args.step_numbers)) return;
      cpu::AddScaled(TrustFactor(args), args.update, args.master, elements);
    });
  }

  void CombineNorms(const CombineNormsArgs& args) override {
    CheckArguments(args);
    CombineNormsOnHost(args);
  }

  void AddColumnSums(const Matrix& x, const Vector& out) override {
    CheckColumnSums(x, out, compute_);
    ForEachColumn(x, [&](int part, cpu::Range cols) { cpu::AddColumnSums(x, out, cols); });
  }

  void Add(const Matrix& a, const Matrix& b, const Matrix& out) override {
    CheckAdd(a, b, out, compute_);
    ForEachRow(out, [&](int part, cpu::Range rows) { cpu::Add(a, b, out, rows); });
  }

  void AddScaled(double factor, const Vector& x, const Vector& out) override {
    CheckAddScaled(x, out, compute_);
    ForEachElement(
        out.size, [&](int part, cpu::Range elements) { cpu::AddScaled(factor, x, out, elements); });
  }

  // On one thread: numerics version 3 adds a vector in one chain, so parts of several threads would
  // give other bits. (Threads could share the chain's running sums only if each read the
  // whole vector, which is half as fast.)
  void AddSumOfSquares(const Vector& x, const Vector& out) override {
    MEGASCALE_CHECK(x.dtype == DType::kF32);
    CheckNumbers("out", out, 1);
    if (x.size > 0) *out.as<double>() += cpu::SumOfSquares(x, {0, x.size});
  }

  void AddTotal(const Vector& x, const Vector& out) override {
    CheckNumbers("x", x, x.size);
    CheckNumbers("out", out, 1);
    for (int64_t i = 0; i < x.size; ++i) *out.as<double>() += x.as<double>()[i];
  }

  void FirstNotFinite(const Matrix& x, const Vector& out) override {
    CheckFirstNotFinite(x, out, compute_);
    FirstNotFiniteOnHost(x, out);
  }

  void Cast(const Vector& from, const Vector& to) override {
    MEGASCALE_CHECK(from.size == to.size);
    if (from.dtype == to.dtype) {
      if (from.size > 0) std::memcpy(to.data, from.data, from.size * tensor::SizeOf(from.dtype));
      return;
    }
    MEGASCALE_CHECK(from.dtype == DType::kF32 || from.dtype == DType::kBF16);
    MEGASCALE_CHECK(to.dtype == DType::kF32 || to.dtype == DType::kBF16);
    ForEachElement(from.size,
                   [&](int part, cpu::Range elements) { cpu::Cast(from, to, elements); });
  }

  void FillZero(const Vector& x) override {
    const int64_t element_bytes = tensor::SizeOf(x.dtype);
    ForEachElement(x.size, [&](int part, cpu::Range elements) {
      cpu::FillZero(x.as<char>() + elements.begin * element_bytes, elements.size() * element_bytes);
    });
  }

 private:
  int ThreadsFor(int64_t elements) const {
    return elements < 2 * kElementsPerThread ? 1 : num_threads_;
  }
  template <typename Body>
  void ForEachRow(const Matrix& matrix, const Body& body) {
    cpu::ForEachPart(ThreadsFor(matrix.rows * matrix.cols), matrix.rows, 1, body);
  }
  template <typename Body>
  void ForEachColumn(const Matrix& matrix, const Body& body) {
    cpu::ForEachPart(ThreadsFor(matrix.rows * matrix.cols), matrix.cols, kElementGrain, body);
  }
  template <typename Body>
  void ForEachElement(int64_t size, const Body& body) {
    cpu::ForEachPart(ThreadsFor(size), size, kElementGrain, body);
  }

  // Divides all elements of a list among the threads at once: calls body(item, elements of the
  // item). Most items of a list are small (norms, biases).
  template <typename Args, typename Body>
  void ForEachElementOf(absl::Span<const Args> list, const Body& body) {
    int64_t size = 0;
    for (const Args& item : list) size += item.master.size;
    ForEachElement(size, [&](int /*part*/, cpu::Range all) {
      int64_t first = 0;  // of the item, among all
      for (const Args& item : list) {
        const cpu::Range mine = {std::max(all.begin - first, int64_t{0}),
                                 std::min(all.end - first, item.master.size)};
        if (mine.begin < mine.end) body(item, mine);
        first += item.master.size;
      }
    });
  }

  void FillWithBias(const MatMulArgs& args);
  void PrepareRotary(const RotaryArgs& args);

  const DType compute_;
  const int num_threads_;
  cpu::MatMulEngine products_;
  std::vector<float> floats_;  // scratch for attention and norms
  std::vector<double> row_losses_;
  RotaryArgs rotary_;  // arguments for which the tables below were computed
  std::vector<float> cosines_, sines_;
};

// Computes a product whose sum has no terms.
void CpuOps::FillWithBias(const MatMulArgs& args) {
  if (args.accumulate) return;
  const size_t bytes = args.c.cols * tensor::SizeOf(args.c.dtype);
  for (int64_t n = 0; n < args.c.rows && bytes > 0; ++n) {
    char* row = args.c.as<char>() + n * args.c.stride * tensor::SizeOf(args.c.dtype);
    if (args.bias) {
      Cast(args.bias, {row, args.c.dtype, args.c.cols});
    } else {
      std::memset(row, 0, bytes);
    }
  }
}

void CpuOps::NormBackward(const NormBackwardArgs& args) {
  CheckArguments(args, compute_);
  const int64_t cols = args.x.cols;
  const int threads = ThreadsFor(args.x.rows * cols);
  // The first part adds to the caller's gradients, the others to separate sums, which are added in
  // order.
  float* sums = Grow(floats_, 2 * cols * (threads - 1));
  std::fill(sums, sums + 2 * cols * (threads - 1), 0.0f);
  const auto sum_of = [&](int part, int which) {
    return Vector{sums + (2 * (part - 1) + which) * cols, DType::kF32, cols};
  };
  cpu::ForEachPart(threads, args.x.rows, 1, [&](int part, cpu::Range rows) {
    NormBackwardArgs mine = args;
    if (part > 0) mine.d_weight = sum_of(part, 0);
    if (part > 0 && args.d_bias) mine.d_bias = sum_of(part, 1);
    cpu::NormBackward(mine, rows);
  });
  const auto add = [&](const Vector& to, const Vector& from) {
    cpu::AddColumnSums({from.data, DType::kF32, 1, cols, cols}, to, {0, cols});
  };
  for (int part = 1; part < threads; ++part) {
    add(args.d_weight, sum_of(part, 0));
    if (args.d_bias) add(args.d_bias, sum_of(part, 1));
  }
}

void CpuOps::PrepareRotary(const RotaryArgs& args) {
  const bool same = rotary_.seq == args.seq && rotary_.turned() == args.turned();
  if (same && rotary_.theta == args.theta && rotary_.scaling == args.scaling) return;
  const int64_t half = args.turned() / 2;
  cosines_.resize(args.seq * half);
  sines_.resize(args.seq * half);
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = args.Frequency(i);
    const double amplitude = args.scaling.amplitude;
    for (int64_t t = 0; t < args.seq; ++t) {
      cosines_[t * half + i] = static_cast<float>(amplitude * std::cos(t * frequency));
      sines_[t * half + i] = static_cast<float>(amplitude * std::sin(t * frequency));
    }
  }
  rotary_ = args;
}

}  // namespace

std::unique_ptr<Ops> MakeCpuOps(DType compute, int num_threads) {
  // oneDNN divides a product among the requested threads, even if the system grants fewer.
  return std::make_unique<CpuOps>(compute, std::min(num_threads, omp_get_thread_limit()));
}

int64_t CpuKernelBytes(const KernelShapes& shapes, int num_threads) {
  cpu::ProductCopies most;
  for (const MatMulArgs& product : shapes.products) {
    const cpu::ProductCopies copies = cpu::CopiesOf(product, num_threads);
    most.a = std::max(most.a, copies.a);
    most.b = std::max(most.b, copies.b);
    most.c = std::max(most.c, copies.c);
    most.packed_b = std::max(most.packed_b, copies.packed_b);
    most.in_gemm = std::max(most.in_gemm, copies.in_gemm);
  }
  const int64_t floats = std::max(cpu::AttentionBackwardScratchSize(shapes.attention),
                                  cpu::PowersSize(shapes.logits_cols));
  return most.a + most.b + most.c + most.packed_b + most.in_gemm +
         floats * num_threads * static_cast<int64_t>(sizeof(float));
}

double MeasureMatMulCeiling(DType compute, int num_threads, double seconds) {
  // fp64 is computed by the plain loops of the reference.
  const bool is_reference = compute == DType::kF64;
  const int64_t size = is_reference ? 128 : 1024;
  const double product_flops = 2.0 * static_cast<double>(size * size * size);
  auto arena = tensor::Arena::Create(3 * tensor::Arena::BytesFor(compute, size * size));
  MEGASCALE_CHECK_MSG(arena.ok(), "no memory for the measurement of matrix products");
  MatMulArgs args;
  args.a = arena->AllocateMatrix(compute, size, size);
  args.b = arena->AllocateMatrix(compute, size, size);
  args.c = arena->AllocateMatrix(compute, size, size);
  const std::unique_ptr<Ops> reference = MakeReferenceOps();
  cpu::MatMulEngine engine(num_threads);
  // Takes the fastest call in the better layout: a ceiling is the rate of the undisturbed machine.
  double least = std::numeric_limits<double>::infinity();
  for (const Transpose transpose_b : {Transpose::kYes, Transpose::kNo}) {
    args.transpose_b = transpose_b;
    const base::Tries tries = {.seconds = seconds / 2};
    least = std::min(least, base::LeastSeconds(tries, [&] {
                       is_reference ? reference->MatMul(args) : engine.Run(args);
                     }));
  }
  return product_flops / least;
}

}  // namespace megascale::ops
