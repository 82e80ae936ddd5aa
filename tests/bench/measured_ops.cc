#include "tests/bench/measured_ops.h"

#include <chrono>

#include "runtime/ops/epilogues.h"

namespace megascale::bench {
namespace {

using ops::Matrix;
using ops::Vector;
using ops::Work;
using ops::WorkOf;

}  // namespace

template <typename Call>
void MeasuredOps::Measure(Cost& cost, const Work& work, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  cost.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++cost.num_calls;
  cost.flops += static_cast<double>(work.flops);
  cost.bytes += static_cast<double>(work.bytes);
}

template <typename Call>
void MeasuredOps::MeasureOther(const Work& work, const Call& call) {
  Measure(others_[work.name], work, call);
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
  const ops::MatMulArgs product = ops::WithoutEpilogues(args);
  Measure(products_[shape], WorkOf(product), [&] { inner_.MatMul(product); });
  ops::RunEpilogues(args, this);
}

void MeasuredOps::Norm(const ops::NormArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.Norm(args); });
}

void MeasuredOps::NormBackward(const ops::NormBackwardArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.NormBackward(args); });
}

void MeasuredOps::Attention(const ops::AttentionArgs& args) {
  attention_ = {.batch_heads = args.batch * args.heads,
                .seq = args.seq,
                .head_dim = args.head_dim,
                .window = args.window,
                .dtype = args.q.dtype};
  MeasureOther(WorkOf(args), [&] { inner_.Attention(args); });
}

void MeasuredOps::AttentionBackward(const ops::AttentionBackwardArgs& args) {
  Work work = WorkOf(args);
  work.flops = work.flops / 4 * 5;  // a roofline has to make the scores again: a fifth product
  MeasureOther(work, [&] { inner_.AttentionBackward(args); });
}

void MeasuredOps::Rotary(const ops::RotaryArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.Rotary(args); });
}

void MeasuredOps::Activation(const ops::ActivationArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.Activation(args); });
}

void MeasuredOps::ActivationBackward(const ops::ActivationBackwardArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.ActivationBackward(args); });
}

void MeasuredOps::Embedding(const ops::EmbeddingArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.Embedding(args); });
}

void MeasuredOps::EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.EmbeddingBackward(args); });
}

void MeasuredOps::LogitStatistics(const ops::LogitStatisticsArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.LogitStatistics(args); });
}

void MeasuredOps::CrossEntropy(const ops::CrossEntropyArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.CrossEntropy(args); });
}

void MeasuredOps::AdamW(absl::Span<const ops::AdamWArgs> list) {
  MeasureOther(WorkOf(list), [&] { optimizer_.AdamW(list); });
}

void MeasuredOps::TrustStep(absl::Span<const ops::TrustStepArgs> list) {
  MeasureOther(WorkOf(list), [&] { optimizer_.TrustStep(list); });
}

void MeasuredOps::CombineNorms(const ops::CombineNormsArgs& args) {
  MeasureOther(WorkOf(args), [&] { inner_.CombineNorms(args); });
}

void MeasuredOps::AddColumnSums(const Matrix& x, const Vector& out) {
  MeasureOther(ops::WorkOfAddColumnSums(x), [&] { inner_.AddColumnSums(x, out); });
}

void MeasuredOps::Add(const Matrix& a, const Matrix& b, const Matrix& out) {
  MeasureOther(ops::WorkOfAdd(out), [&] { inner_.Add(a, b, out); });
}

void MeasuredOps::AddScaled(double factor, const Vector& x, const Vector& out) {
  MeasureOther(ops::WorkOfAddScaled(x), [&] { inner_.AddScaled(factor, x, out); });
}

void MeasuredOps::AddSumOfSquares(const Vector& x, const Vector& out) {
  MeasureOther(ops::WorkOfSumOfSquares(x), [&] { inner_.AddSumOfSquares(x, out); });
}

void MeasuredOps::AddTotal(const Vector& x, const Vector& out) {
  MeasureOther(ops::WorkOfSumOfSquares(x), [&] { inner_.AddTotal(x, out); });
}

void MeasuredOps::FirstNotFinite(const Matrix& x, const Vector& out) {
  MeasureOther(ops::WorkOfAddColumnSums(x), [&] { inner_.FirstNotFinite(x, out); });
}

void MeasuredOps::Cast(const Vector& from, const Vector& to) {
  MeasureOther(ops::WorkOfCast(from, to), [&] { inner_.Cast(from, to); });
}

void MeasuredOps::FillZero(const Vector& x) {
  MeasureOther(ops::WorkOfFillZero(x), [&] { inner_.FillZero(x); });
}

}  // namespace megascale::bench
