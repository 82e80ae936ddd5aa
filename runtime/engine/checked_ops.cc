#include "runtime/engine/checked_ops.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/ops/epilogues.h"

namespace megascale::engine {
namespace {

using ops::Matrix;
using ops::Vector;

const char* NameOf(double not_finite) {
  return std::isnan(not_finite) ? "nan" : not_finite > 0 ? "inf" : "-inf";
}

// Splits "model.layers.3.mlp.up.weight" into "layer 3" and "mlp.up.weight"; a name without a layer
// has an empty `layer`.
struct Place {
  std::string layer;
  std::string rest;
};

Place PlaceOf(absl::string_view name) {
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, "model.layers.")) {
    const size_t dot = rest.find('.');
    int layer = 0;
    if (dot != absl::string_view::npos && absl::SimpleAtoi(rest.substr(0, dot), &layer)) {
      return {absl::StrCat("layer ", layer, ": "), std::string(rest.substr(dot + 1))};
    }
  }
  return {"", std::string(name)};
}

}  // namespace

bool CheckedOps::At(const void* data) {
  std::string name = parameter_at_(data);
  if (name.empty()) return false;
  place_ = std::move(name);
  return true;
}

void CheckedOps::Look(const Matrix& out, absl::string_view operation, bool own) {
  if (!finding_.empty()) return;
  ++num_looked_at_;
  if (!out) return;
  const double found = first_not_finite_(out);
  if (std::isfinite(found)) return;
  const char* const value = NameOf(found);
  const Place place = PlaceOf(place_);
  finding_ =
      own ? absl::StrCat(place.layer, operation, " ", place.rest, " gave ", value)
          : absl::StrCat(place.layer, operation, ", after ",
                         place.rest.empty() ? "what it was given" : place.rest, ", gave ", value);
}

void CheckedOps::Look(const Vector& out, absl::string_view operation, bool own) {
  Look(Matrix{out.data, out.dtype, 1, out.size, out.size}, operation, own);
}

void CheckedOps::MatMul(const ops::MatMulArgs& args) {
  ops_.MatMul(ops::WithoutEpilogues(args));
  const bool forward = args.transpose_b == ops::Transpose::kYes;
  if (At(args.b.data)) {
    Look(args.c, forward ? "matrix product with" : "backward matrix product with", true);
  } else {
    Look(args.c, "gradient of", At(args.c.data));
  }
  ops::RunEpilogues(args, this);
}

void CheckedOps::Norm(const ops::NormArgs& args) {
  ops_.Norm(args);
  // Check the sum first: a bad value in it comes from the operators before this norm.
  if (args.delta) Look(args.sum, "residual sum", false);
  Look(args.out, "norm with", At(args.weight.data));
}

void CheckedOps::NormBackward(const ops::NormBackwardArgs& args) {
  ops_.NormBackward(args);
  const bool own = At(args.weight.data);
  Look(args.d_x, "backward norm with", own);
  Look(args.d_weight, "gradient of", own);
}

void CheckedOps::Attention(const ops::AttentionArgs& args) {
  ops_.Attention(args);
  Look(args.out, "attention", false);
}

void CheckedOps::AttentionBackward(const ops::AttentionBackwardArgs& args) {
  ops_.AttentionBackward(args);
  for (const Matrix* out : {&args.d_q, &args.d_k, &args.d_v}) {
    Look(*out, "backward attention", false);
  }
}

void CheckedOps::Rotary(const ops::RotaryArgs& args) {
  ops_.Rotary(args);
  Look(args.x, args.inverse ? "backward rotary embedding" : "rotary embedding", false);
}

void CheckedOps::Activation(const ops::ActivationArgs& args) {
  ops_.Activation(args);
  Look(args.out, "activation", false);
}

void CheckedOps::ActivationBackward(const ops::ActivationBackwardArgs& args) {
  ops_.ActivationBackward(args);
  Look(args.d_in, "backward activation", false);
}

void CheckedOps::Embedding(const ops::EmbeddingArgs& args) {
  ops_.Embedding(args);
  Look(args.out, "embedding with", At(args.token_weight.data));
}

void CheckedOps::EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) {
  ops_.EmbeddingBackward(args);
  Look(args.d_token_weight, "gradient of", At(args.d_token_weight.data));
}

void CheckedOps::LogitStatistics(const ops::LogitStatisticsArgs& args) {
  ops_.LogitStatistics(args);
  Look(args.statistics, "cross-entropy", false);
}

void CheckedOps::CrossEntropy(const ops::CrossEntropyArgs& args) {
  ops_.CrossEntropy(args);
  // The sum of the micro-batches before was finite, or it would be the finding.
  Look(args.loss_sum, "cross-entropy", false);
  Look(args.logits, "backward cross-entropy", false);
}

void CheckedOps::AddColumnSums(const Matrix& x, const Vector& out) {
  ops_.AddColumnSums(x, out);
  Look(out, "gradient of", At(out.data));
}

void CheckedOps::Add(const Matrix& a, const Matrix& b, const Matrix& out) {
  ops_.Add(a, b, out);
  Look(out, "residual sum", false);
}

}  // namespace megascale::engine
