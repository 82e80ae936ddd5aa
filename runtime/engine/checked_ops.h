// Operators that check every result for values that are not finite. The engine uses them when it
// repeats a step whose loss or gradient was not finite. They delegate to another Ops, so they give
// the same bits. Exception: epilogues run after the product, as separate operators, so a device
// that otherwise fuses product and epilogues rounds differently here. Private to the engine.
// Threads: one. Cost: one pass over every result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/ops/ops.h"

namespace megascale::engine {

class CheckedOps final : public ops::Ops {
 public:
  // Returns the name of the parameter whose values or gradients lie at an address, such as
  // "model.layers.3.mlp.up.weight"; "" for any other address.
  using ParameterAt = std::function<std::string(const void*)>;

  // Returns the first element of a matrix that is not finite, or 0: what Ops::FirstNotFinite gives,
  // brought to the host.
  using FirstNotFiniteOf = std::function<double(const ops::Matrix&)>;

  // `ops` is borrowed.
  CheckedOps(ops::Ops* ops, ParameterAt parameter_at, FirstNotFiniteOf first_not_finite)
      : ops_(*ops),
        parameter_at_(std::move(parameter_at)),
        first_not_finite_(std::move(first_not_finite)) {}

  // Returns the operator that gave the first value that is not finite, and its layer: "layer 3:
  // matrix product with mlp.up.weight gave inf". An operator without parameters is named after the
  // last operator that had some: "layer 3: attention, after attn.qkv.weight, gave nan". "": all
  // values were finite.
  const std::string& finding() const { return finding_; }
  // Results checked up to the finding. Tensor ranks, which share a pass, have equal counts.
  int64_t num_looked_at() const { return num_looked_at_; }

  ops::DType compute() const override { return ops_.compute(); }
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
  void AdamW(absl::Span<const ops::AdamWArgs> list) override { ops_.AdamW(list); }
  void TrustStep(absl::Span<const ops::TrustStepArgs> list) override { ops_.TrustStep(list); }
  void CombineNorms(const ops::CombineNormsArgs& args) override { ops_.CombineNorms(args); }
  void AddColumnSums(const ops::Matrix& x, const ops::Vector& out) override;
  void Add(const ops::Matrix& a, const ops::Matrix& b, const ops::Matrix& out) override;
  void AddScaled(double factor, const ops::Vector& x, const ops::Vector& out) override {
    ops_.AddScaled(factor, x, out);
  }
  void AddSumOfSquares(const ops::Vector& x, const ops::Vector& out) override {
    ops_.AddSumOfSquares(x, out);
  }
  void AddTotal(const ops::Vector& x, const ops::Vector& out) override { ops_.AddTotal(x, out); }
  void FirstNotFinite(const ops::Matrix& x, const ops::Vector& out) override {
    ops_.FirstNotFinite(x, out);
  }
  void Cast(const ops::Vector& from, const ops::Vector& to) override { ops_.Cast(from, to); }
  void FillZero(const ops::Vector& x) override { ops_.FillZero(x); }

 private:
  // Remembers the parameter at `data`, if there is one, as this operator's place; returns whether
  // there is one.
  bool At(const void* data);
  // Records the first value of `out` that is not finite. `own`: the operator itself uses the
  // parameter of the place; otherwise it runs after the operator that does.
  void Look(const ops::Matrix& out, absl::string_view operation, bool own);
  void Look(const ops::Vector& out, absl::string_view operation, bool own);

  ops::Ops& ops_;
  const ParameterAt parameter_at_;
  const FirstNotFiniteOf first_not_finite_;
  std::string place_;
  std::string finding_;
  int64_t num_looked_at_ = 0;
};

}  // namespace megascale::engine
