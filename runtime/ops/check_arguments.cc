#include "runtime/ops/check_arguments.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::ops {
namespace {

void CheckMatrix(absl::string_view name, const Matrix& matrix, DType dtype, int64_t rows,
                 int64_t cols) {
  const bool fits = matrix.dtype == dtype && matrix.rows == rows && matrix.cols == cols &&
                    matrix.stride >= cols && (matrix.data != nullptr || rows * cols == 0);
  if (fits) return;
  base::CheckFailed(__FILE__, __LINE__, "the matrix fits the operator",
                    absl::StrCat(name, " is ", tensor::Name(matrix.dtype), " [", matrix.rows, ", ",
                                 matrix.cols, "] with stride ", matrix.stride, ", expected ",
                                 tensor::Name(dtype), " [", rows, ", ", cols, "]"));
}

void CheckVector(absl::string_view name, const Vector& vector, DType dtype, int64_t size) {
  const bool fits =
      vector.dtype == dtype && vector.size == size && (vector.data != nullptr || size == 0);
  if (fits) return;
  base::CheckFailed(__FILE__, __LINE__, "the vector fits the operator",
                    absl::StrCat(name, " is ", tensor::Name(vector.dtype), " [", vector.size,
                                 "], expected ", tensor::Name(dtype), " [", size, "]"));
}

template <typename Args>
void CheckDocumentBegins(const Args& args, int64_t rows) {
  if (!args.document_begins) return;
  CheckVector("document_begins", args.document_begins, DType::kI32, rows);
}

// `count`: rows or columns that stand for tokens.
void CheckVocabulary(const VocabularyPart& part, int64_t count) {
  if (part.vocab_size == 0) {
    MEGASCALE_CHECK(part.first_token == 0);
  } else {
    MEGASCALE_CHECK(part.first_token >= 0 && part.first_token + count <= part.vocab_size);
  }
}

void CheckEpilogues(const MatMulArgs& args, DType compute) {
  const int count =
      (args.activated ? 1 : 0) + (args.d_activation_in ? 1 : 0) + (args.d_bias ? 1 : 0);
  MEGASCALE_CHECK_MSG(count <= 1, "a product has one epilogue at most");
  if (args.activated) {
    MEGASCALE_CHECK(!args.accumulate);
    CheckArguments(ActivationArgs{args.activation, args.c, args.activated}, compute);
  }
  if (args.d_activation_in) {
    MEGASCALE_CHECK(!args.accumulate);
    CheckArguments(
        ActivationBackwardArgs{args.activation, args.activation_in, args.c, args.d_activation_in},
        compute);
  }
  if (args.d_bias) {
    MEGASCALE_CHECK(args.transpose_a == Transpose::kYes);
    CheckColumnSums(args.a, args.d_bias, compute);
  }
}

}  // namespace

void CheckArguments(const MatMulArgs& args, DType compute) {
  const bool a_transposed = args.transpose_a == Transpose::kYes;
  const bool b_transposed = args.transpose_b == Transpose::kYes;
  const int64_t m = args.c.rows, n = args.c.cols;
  const int64_t k = a_transposed ? args.a.rows : args.a.cols;
  CheckMatrix("a", args.a, compute, a_transposed ? k : m, a_transposed ? m : k);
  CheckMatrix("b", args.b, compute, b_transposed ? n : k, b_transposed ? k : n);
  const DType output = args.c.dtype == compute ? compute : tensor::AccumulationType(compute);
  CheckMatrix("c", args.c, output, m, n);
  if (args.bias) {
    CheckVector("bias", args.bias, compute, n);
    MEGASCALE_CHECK_MSG(!args.accumulate, "bias and accumulate exclude each other");
  }
  MEGASCALE_CHECK(!args.few_rows || (m <= kFewRows && !a_transposed && b_transposed));
  MEGASCALE_CHECK(!args.few_rows || !args.accumulate);
  CheckEpilogues(args, compute);
}

void CheckArguments(const NormArgs& args, DType compute) {
  const DType accumulation = tensor::AccumulationType(compute);
  const int64_t rows = args.x.rows, cols = args.x.cols;
  CheckMatrix("x", args.x, compute, rows, cols);
  if (args.delta) {
    CheckMatrix("delta", args.delta, compute, rows, cols);
    CheckMatrix("sum", args.sum, compute, rows, cols);
  }
  CheckVector("weight", args.weight, compute, cols);
  if (args.bias) CheckVector("bias", args.bias, compute, cols);
  CheckMatrix("out", args.out, compute, rows, cols);
  CheckVector("rstd", args.rstd, accumulation, rows);
  if (args.kind == NormKind::kLayerNorm) CheckVector("mean", args.mean, accumulation, rows);
}

void CheckArguments(const NormBackwardArgs& args, DType compute) {
  const DType accumulation = tensor::AccumulationType(compute);
  const int64_t rows = args.x.rows, cols = args.x.cols;
  CheckMatrix("x", args.x, compute, rows, cols);
  CheckVector("weight", args.weight, compute, cols);
  CheckVector("rstd", args.rstd, accumulation, rows);
  if (args.kind == NormKind::kLayerNorm) CheckVector("mean", args.mean, accumulation, rows);
  CheckMatrix("d_out", args.d_out, compute, rows, cols);
  CheckMatrix("d_x", args.d_x, compute, rows, cols);
  CheckVector("d_weight", args.d_weight, accumulation, cols);
  if (args.d_bias) CheckVector("d_bias", args.d_bias, accumulation, cols);
}

void CheckArguments(const AttentionArgs& args, DType compute) {
  MEGASCALE_CHECK(args.batch >= 0 && args.seq >= 0 && args.window >= 0);
  MEGASCALE_CHECK(args.head_dim > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0);
  const int64_t rows = args.batch * args.seq;
  CheckMatrix("q", args.q, compute, rows, args.heads * args.head_dim);
  CheckMatrix("k", args.k, compute, rows, args.kv_heads * args.head_dim);
  CheckMatrix("v", args.v, compute, rows, args.kv_heads * args.head_dim);
  CheckMatrix("out", args.out, compute, rows, args.heads * args.head_dim);
  CheckVector("log_sum_exp", args.log_sum_exp, tensor::AccumulationType(compute),
              rows * args.heads);
  CheckDocumentBegins(args, rows);
}

void CheckArguments(const AttentionBackwardArgs& args, DType compute) {
  const AttentionArgs& forward = args.forward;
  CheckArguments(forward, compute);
  CheckMatrix("d_out", args.d_out, compute, forward.out.rows, forward.out.cols);
  CheckMatrix("d_q", args.d_q, compute, forward.q.rows, forward.q.cols);
  CheckMatrix("d_k", args.d_k, compute, forward.k.rows, forward.k.cols);
  CheckMatrix("d_v", args.d_v, compute, forward.v.rows, forward.v.cols);
}

void CheckArguments(const CachedAttentionArgs& args, DType compute) {
  MEGASCALE_CHECK(args.window >= 0 && args.capacity > 0);
  MEGASCALE_CHECK(args.head_dim > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0);
  const int64_t rows = args.places.size, kv_cols = args.kv_heads * args.head_dim;
  CheckVector("places", args.places, DType::kI32, rows);
  CheckMatrix("q", args.q, compute, rows, args.heads * args.head_dim);
  CheckMatrix("k", args.k, compute, rows, kv_cols);
  CheckMatrix("v", args.v, compute, rows, kv_cols);
  CheckMatrix("out", args.out, compute, rows, args.heads * args.head_dim);
  MEGASCALE_CHECK(args.cached_k.rows % args.capacity == 0);
  CheckMatrix("cached_k", args.cached_k, compute, args.cached_k.rows, kv_cols);
  CheckMatrix("cached_v", args.cached_v, compute, args.cached_k.rows, kv_cols);
  for (int64_t n = 0; n < rows; ++n) {
    const int32_t place = args.places.as<int32_t>()[n];
    MEGASCALE_CHECK_MSG(place >= 0 && place < args.cached_k.rows, "a place outside of the cache");
  }
}

void Ops::CachedAttention(const CachedAttentionArgs& /*args*/) {
  MEGASCALE_CHECK_MSG(false, "this implementation does not generate");
}

double RotaryArgs::Frequency(int64_t pair) const {
  const auto index = static_cast<double>(pair);
  const double frequency = std::pow(theta, -2.0 * index / static_cast<double>(turned()));
  if (scaling.factor == 1) return frequency;
  const double kept = std::clamp(
      scaling.kept_at_0 + scaling.kept_per_pair * index + scaling.kept_per_frequency * frequency,
      0.0, 1.0);
  return frequency * (kept + (1 - kept) / scaling.factor);
}

void CheckArguments(const RotaryArgs& args, DType compute) {
  MEGASCALE_CHECK(args.scaling.factor >= 1 && args.scaling.amplitude > 0);
  MEGASCALE_CHECK(args.seq > 0 && args.turned() % 2 == 0 && args.turned() <= args.head_dim);
  CheckMatrix("x", args.x, compute, args.x.rows, args.heads * args.head_dim);
  if (args.places) CheckVector("places", args.places, DType::kI32, args.x.rows);
}

void CheckArguments(const ActivationArgs& args, DType compute) {
  const int64_t width = args.kind == ActivationKind::kSwiGlu ? 2 : 1;
  CheckMatrix("out", args.out, compute, args.in.rows, args.out.cols);
  CheckMatrix("in", args.in, compute, args.in.rows, args.out.cols * width);
}

void CheckArguments(const ActivationBackwardArgs& args, DType compute) {
  const int64_t width = args.kind == ActivationKind::kSwiGlu ? 2 : 1;
  CheckMatrix("d_out", args.d_out, compute, args.in.rows, args.d_out.cols);
  CheckMatrix("in", args.in, compute, args.in.rows, args.d_out.cols * width);
  CheckMatrix("d_in", args.d_in, compute, args.in.rows, args.in.cols);
}

void CheckArguments(const EmbeddingArgs& args, DType compute) {
  const int64_t rows = args.tokens.size, cols = args.out.cols;
  CheckVector("tokens", args.tokens, DType::kI32, rows);
  CheckMatrix("token_weight", args.token_weight, compute, args.token_weight.rows, cols);
  CheckVocabulary(args.vocabulary, args.token_weight.rows);
  CheckMatrix("out", args.out, compute, rows, cols);
  if (args.position_weight) {
    MEGASCALE_CHECK(args.seq > 0 && args.seq <= args.position_weight.rows);
    CheckMatrix("position_weight", args.position_weight, compute, args.position_weight.rows, cols);
  }
  if (args.places) CheckVector("places", args.places, DType::kI32, rows);
  CheckDocumentBegins(args, rows);
  MEGASCALE_CHECK(!args.places || !args.document_begins);
}

void CheckArguments(const EmbeddingBackwardArgs& args, DType compute) {
  const DType accumulation = tensor::AccumulationType(compute);
  const int64_t rows = args.tokens.size, cols = args.d_out.cols;
  CheckVector("tokens", args.tokens, DType::kI32, rows);
  CheckMatrix("d_out", args.d_out, compute, rows, cols);
  CheckMatrix("d_token_weight", args.d_token_weight, accumulation, args.d_token_weight.rows, cols);
  CheckVocabulary(args.vocabulary, args.d_token_weight.rows);
  if (args.d_position_weight) {
    MEGASCALE_CHECK(args.seq > 0 && args.seq <= args.d_position_weight.rows);
    CheckMatrix("d_position_weight", args.d_position_weight, accumulation,
                args.d_position_weight.rows, cols);
  }
  CheckDocumentBegins(args, rows);
}

void CheckArguments(const LogitStatisticsArgs& args, DType compute) {
  const int64_t rows = args.targets.size;
  CheckMatrix("logits", args.logits, compute, rows, args.logits.cols);
  CheckVector("targets", args.targets, DType::kI32, rows);
  CheckVector("statistics", args.statistics, tensor::AccumulationType(compute), 3 * rows);
  CheckVocabulary(args.vocabulary, args.logits.cols);
}

void CheckArguments(const CrossEntropyArgs& args, DType compute) {
  const int64_t rows = args.targets.size;
  CheckMatrix("logits", args.logits, compute, rows, args.logits.cols);
  CheckVector("targets", args.targets, DType::kI32, rows);
  CheckVocabulary(args.vocabulary, args.logits.cols);
  if (args.statistics) {
    const int64_t num_parts = rows == 0 ? 0 : args.statistics.size / (3 * rows);
    CheckVector("statistics", args.statistics, tensor::AccumulationType(compute),
                3 * rows * num_parts);
  } else {
    MEGASCALE_CHECK(args.vocabulary.vocab_size == 0 ||
                    args.vocabulary.vocab_size == args.logits.cols);
  }
  CheckNumbers("loss_sum", args.loss_sum, 1);
}

void CheckArguments(const AdamWArgs& args, DType compute) {
  const DType accumulation = tensor::AccumulationType(compute);
  const int64_t size = args.master.size;
  CheckVector("master", args.master, accumulation, size);
  CheckVector("exp_avg", args.exp_avg, accumulation, size);
  CheckVector("exp_avg_sq", args.exp_avg_sq, accumulation, size);
  CheckVector("grad", args.grad, accumulation, size);
  if (args.compute_copy) CheckVector("compute_copy", args.compute_copy, compute, size);
  if (args.update) CheckVector("update", args.update, accumulation, size);
  MEGASCALE_CHECK(!args.compute_copy || !args.update);
  CheckNumbers("step_numbers", args.step_numbers, kNumStepNumbers);
}

void CheckArguments(const TrustStepArgs& args, DType compute) {
  const DType accumulation = tensor::AccumulationType(compute);
  CheckVector("master", args.master, accumulation, args.master.size);
  CheckVector("update", args.update, accumulation, args.master.size);
  CheckNumbers("trust_sums", args.trust_sums, args.trust_sums.size);
  MEGASCALE_CHECK(args.num_parts >= 1 && args.trust_sums.size % args.num_parts == 0);
  MEGASCALE_CHECK(args.first_sum >= 0 &&
                  args.first_sum + 1 < args.trust_sums.size / args.num_parts);
  CheckNumbers("step_numbers", args.step_numbers, kNumStepNumbers);
}

void CheckArguments(const CombineNormsArgs& args) {
  CheckNumbers("ranks", args.ranks, args.ranks.size);
  MEGASCALE_CHECK(args.ranks.size > 0 && args.ranks.size % kNumRankNumbers == 0);
  if (args.sums) return CheckNumbers("sums", args.sums, kNumRankNumbers);
  CheckNumbers("step_numbers", args.step_numbers, kNumStepNumbers);
}

void CheckNumbers(const char* name, const Vector& numbers, int64_t size) {
  CheckVector(name, numbers, DType::kF64, size);
}

void CheckFirstNotFinite(const Matrix& x, const Vector& out, DType compute) {
  MEGASCALE_CHECK(x.dtype == compute || x.dtype == tensor::AccumulationType(compute) ||
                  x.dtype == DType::kF64);
  CheckMatrix("x", x, x.dtype, x.rows, x.cols);
  CheckNumbers("out", out, 1);
}

void CheckColumnSums(const Matrix& x, const Vector& out, DType compute) {
  CheckMatrix("x", x, compute, x.rows, x.cols);
  CheckVector("out", out, tensor::AccumulationType(compute), x.cols);
}

void CheckAddScaled(const Vector& x, const Vector& out, DType compute) {
  CheckVector("x", x, tensor::AccumulationType(compute), out.size);
  CheckVector("out", out, tensor::AccumulationType(compute), out.size);
}

void CheckAdd(const Matrix& a, const Matrix& b, const Matrix& out, DType compute) {
  CheckMatrix("a", a, compute, out.rows, out.cols);
  CheckMatrix("b", b, compute, out.rows, out.cols);
  CheckMatrix("out", out, compute, out.rows, out.cols);
}

}  // namespace megascale::ops
