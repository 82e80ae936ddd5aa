#include "tests/bench/measured_ops.h"

#include <algorithm>
#include <chrono>

namespace megascale::bench {
namespace {

using ops::Matrix;
using ops::Vector;

double Bytes(const Matrix& matrix) {
  return static_cast<double>(matrix.rows * matrix.cols) *
         static_cast<double>(tensor::SizeOf(matrix.dtype));
}
double Bytes(const Vector& vector) {
  return vector
             ? static_cast<double>(vector.size) * static_cast<double>(tensor::SizeOf(vector.dtype))
             : 0;
}

// Pairs of query and key that a head's mask leaves.
double Pairs(int64_t seq, int64_t window) {
  const int64_t w = window == 0 ? seq : std::min(window, seq);
  return static_cast<double>(w) * static_cast<double>(w + 1) / 2 +
         static_cast<double>(seq - w) * static_cast<double>(w);
}

double ProductFlops(const ops::AttentionArgs& args) {
  return 2.0 * static_cast<double>(args.batch * args.heads * args.head_dim) *
         Pairs(args.seq, args.window);
}

}  // namespace

template <typename Call>
void MeasuredOps::Measure(Cost& cost, double flops, double bytes, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  cost.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++cost.num_calls;
  cost.flops += flops;
  cost.bytes += bytes;
}

void MeasuredOps::Reset() {
  products_.clear();
  others_.clear();
}

void MeasuredOps::MatMul(const ops::MatMulArgs& args) {
  const bool transpose_a = args.transpose_a == ops::Transpose::kYes;
  const ProductShape shape = {.m = args.c.rows,
                              .n = args.c.cols,
                              .k = transpose_a ? args.a.rows : args.a.cols,
                              .operand = args.a.dtype,
                              .result = args.c.dtype,
                              .transpose_a = transpose_a,
                              .transpose_b = args.transpose_b == ops::Transpose::kYes,
                              .accumulate = args.accumulate};
  const double flops = 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
  Measure(products_[shape], flops, Bytes(args.a) + Bytes(args.b) + Bytes(args.c),
          [&] { inner_.MatMul(args); });
}

void MeasuredOps::Norm(const ops::NormArgs& args) {
  const double bytes = Bytes(args.x) * (args.delta ? 4 : 2);
  Measure(others_["norm"], 0, bytes, [&] { inner_.Norm(args); });
}

void MeasuredOps::NormBackward(const ops::NormBackwardArgs& args) {
  Measure(others_["norm, backward"], 0, Bytes(args.x) * 4, [&] { inner_.NormBackward(args); });
}

void MeasuredOps::Attention(const ops::AttentionArgs& args) {
  attention_ = {.batch_heads = args.batch * args.heads,
                .seq = args.seq,
                .head_dim = args.head_dim,
                .window = args.window,
                .dtype = args.q.dtype};
  const double bytes = Bytes(args.q) + Bytes(args.k) + Bytes(args.v) + Bytes(args.out);
  Measure(others_["attention"], 2 * ProductFlops(args), bytes, [&] { inner_.Attention(args); });
}

void MeasuredOps::AttentionBackward(const ops::AttentionBackwardArgs& args) {
  const ops::AttentionArgs& forward = args.forward;
  const double bytes = 2 * (Bytes(forward.q) + Bytes(forward.k) + Bytes(forward.v)) +
                       Bytes(forward.out) + Bytes(args.d_out);
  Measure(others_["attention, backward"], 5 * ProductFlops(forward), bytes,
          [&] { inner_.AttentionBackward(args); });
}

void MeasuredOps::Rotary(const ops::RotaryArgs& args) {
  Measure(others_["rotary"], 0, Bytes(args.x) * 2, [&] { inner_.Rotary(args); });
}

void MeasuredOps::Activation(const ops::ActivationArgs& args) {
  Measure(others_["activation"], 0, Bytes(args.in) + Bytes(args.out),
          [&] { inner_.Activation(args); });
}

void MeasuredOps::ActivationBackward(const ops::ActivationBackwardArgs& args) {
  Measure(others_["activation, backward"], 0, Bytes(args.in) + Bytes(args.d_out) + Bytes(args.d_in),
          [&] { inner_.ActivationBackward(args); });
}

void MeasuredOps::Embedding(const ops::EmbeddingArgs& args) {
  Measure(others_["embedding"], 0, Bytes(args.out) * 2, [&] { inner_.Embedding(args); });
}

void MeasuredOps::EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) {
  Measure(others_["embedding, backward"], 0, Bytes(args.d_out),
          [&] { inner_.EmbeddingBackward(args); });
}

void MeasuredOps::LogitStatistics(const ops::LogitStatisticsArgs& args) {
  Measure(others_["cross-entropy, statistics"], 0, Bytes(args.logits),
          [&] { inner_.LogitStatistics(args); });
}

void MeasuredOps::CrossEntropy(const ops::CrossEntropyArgs& args) {
  Measure(others_["cross-entropy"], 0, Bytes(args.logits) * (args.backward ? 2 : 1),
          [&] { inner_.CrossEntropy(args); });
}

void MeasuredOps::AdamW(const ops::AdamWArgs& args) {
  const double bytes = Bytes(args.grad) + Bytes(args.master) + 2 * Bytes(args.exp_avg) +
                       2 * Bytes(args.exp_avg_sq) + Bytes(args.compute_copy) +
                       Bytes(args.update ? args.update : args.master);
  Measure(others_["adamw"], 0, bytes, [&] { inner_.AdamW(args); });
}

void MeasuredOps::AddColumnSums(const Matrix& x, const Vector& out) {
  Measure(others_["column sums"], 0, Bytes(x), [&] { inner_.AddColumnSums(x, out); });
}

void MeasuredOps::Add(const Matrix& a, const Matrix& b, const Matrix& out) {
  Measure(others_["add"], 0, Bytes(a) * 3, [&] { inner_.Add(a, b, out); });
}

void MeasuredOps::AddScaled(double factor, const Vector& x, const Vector& out) {
  Measure(others_["add scaled"], 0, Bytes(x) * 3, [&] { inner_.AddScaled(factor, x, out); });
}

double MeasuredOps::SumOfSquares(const Vector& x) {
  double sum = 0;
  Measure(others_["sum of squares"], 0, Bytes(x), [&] { sum = inner_.SumOfSquares(x); });
  return sum;
}

void MeasuredOps::Cast(const Vector& from, const Vector& to) {
  Measure(others_["cast"], 0, Bytes(from) + Bytes(to), [&] { inner_.Cast(from, to); });
}

void MeasuredOps::FillZero(const Vector& x) {
  Measure(others_["fill zero"], 0, Bytes(x), [&] { inner_.FillZero(x); });
}

}  // namespace megascale::bench
