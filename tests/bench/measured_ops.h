// An Ops that passes every call on to another Ops and records its cost: time, and the minimum of
// work that it needs. Epilogues of products are measured as the operators that they stand for. The
// source of step_benchmark's table.
//
// Threads: as the inner Ops.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/ops/ops.h"
#include "runtime/ops/work.h"

namespace megascale::bench {

// A matrix product's shape: c [m, n] = a [m, k] b [k, n], as the caller lays the operands out.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  ops::DType operand = ops::DType::kF32;
  ops::DType result = ops::DType::kF32;
  bool transpose_a = false, transpose_b = false, accumulate = false;

  auto Key() const {
    return std::tuple(m, n, k, operand, result, transpose_a, transpose_b, accumulate);
  }
  bool operator<(const ProductShape& other) const { return Key() < other.Key(); }
};

// The total cost of all calls of one kind.
struct Cost {
  double seconds = 0;
  int64_t num_calls = 0;
  double flops = 0;  // of products, and of attention over the pairs that the mask leaves
  double bytes = 0;  // minimum: each operand read once, each result written once

  Cost& operator+=(const Cost& other) {
    seconds += other.seconds;
    num_calls += other.num_calls;
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

struct AttentionShape {
  int64_t batch_heads = 0, seq = 0, head_dim = 0, window = 0;
  ops::DType dtype = ops::DType::kF32;
};

class MeasuredOps final : public ops::Ops {
 public:
  // `optimizer`: makes AdamW's steps in place of `inner`, to compare numbers of threads; null:
  // `inner` does. Requires: the same compute type.
  explicit MeasuredOps(std::unique_ptr<ops::Ops> inner,
                       std::unique_ptr<ops::Ops> optimizer = nullptr)
      : owned_(std::move(inner)),
        owned_optimizer_(std::move(optimizer)),
        inner_(*owned_),
        optimizer_(owned_optimizer_ != nullptr ? *owned_optimizer_ : inner_) {}

  const std::map<ProductShape, Cost>& products() const { return products_; }
  const std::map<std::string, Cost>& others() const { return others_; }
  const AttentionShape& attention() const { return attention_; }  // shape of the last call
  void Reset();

  ops::DType compute() const override { return inner_.compute(); }
  void MatMul(const ops::MatMulArgs& args) override;
  void Norm(const ops::NormArgs& args) override;
  void NormBackward(const ops::NormBackwardArgs& args) override;
  void Attention(const ops::AttentionArgs& args) override;
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override;
  void Rotary(const ops::RotaryArgs& args) override;
  void Activation(const ops::ActivationArgs& args) override;
  void ActivationBackward(const ops::ActivationBackwardArgs& args) override;
  void Embedding(const ops::EmbeddingArgs& args) override;
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) override;
  void LogitStatistics(const ops::LogitStatisticsArgs& args) override;
  void CrossEntropy(const ops::CrossEntropyArgs& args) override;
  void AdamW(absl::Span<const ops::AdamWArgs> list) override;
  void TrustStep(absl::Span<const ops::TrustStepArgs> list) override;
  void CombineNorms(const ops::CombineNormsArgs& args) override;
  void AddColumnSums(const ops::Matrix& x, const ops::Vector& out) override;
  void Add(const ops::Matrix& a, const ops::Matrix& b, const ops::Matrix& out) override;
  void AddScaled(double factor, const ops::Vector& x, const ops::Vector& out) override;
  void AddSumOfSquares(const ops::Vector& x, const ops::Vector& out) override;
  void AddTotal(const ops::Vector& x, const ops::Vector& out) override;
  void FirstNotFinite(const ops::Matrix& x, const ops::Vector& out) override;
  void Cast(const ops::Vector& from, const ops::Vector& to) override;
  void FillZero(const ops::Vector& x) override;

 private:
  template <typename Call>
  void Measure(Cost& cost, const ops::Work& work, const Call& call);
  template <typename Call>
  void MeasureOther(const ops::Work& work, const Call& call);

  const std::unique_ptr<ops::Ops> owned_;
  const std::unique_ptr<ops::Ops> owned_optimizer_;
  ops::Ops& inner_;
  ops::Ops& optimizer_;
  std::map<ProductShape, Cost> products_;
  std::map<std::string, Cost> others_;
  AttentionShape attention_;
};

}  // namespace megascale::bench
