// The one table of tolerances: how far an implementation of Ops may be from the float64 reference,
// by operator and dtype. An element passes if |tested - exact| <= absolute + relative * |exact|.
// Test inputs are of the order of 1, and the reference gets the same numbers.
#pragma once

#include "absl/strings/string_view.h"
#include "runtime/tensor/tensor.h"

namespace megascale::ops {

struct Tolerance {
  absl::string_view name;
  tensor::DType dtype;  // of the result
  double absolute;
  double relative;
  absl::string_view reason;
};

constexpr double kRoundF32 = 0x1p-24;  // half a unit in the last place
constexpr double kRoundBF16 = 0x1p-8;

constexpr Tolerance kTolerances[] = {
    {"MatMul", tensor::DType::kF32, 1e-4, 1e-5, "sums of up to 300 products, in any order"},
    {"MatMul", tensor::DType::kBF16, 1e-3, 2.1 * kRoundBF16,
     "fp32 sums rounded once, or twice where they are added to bf16"},
    {"Norm", tensor::DType::kF32, 1e-5, 1e-5, "two sums over a row"},
    {"Norm", tensor::DType::kBF16, 2e-2, 2 * kRoundBF16,
     "x + delta is rounded before it is normalised; the result is rounded too"},
    {"Sum", tensor::DType::kF32, 0, kRoundF32, "one addition"},
    {"Sum", tensor::DType::kBF16, 0, 1.01 * kRoundBF16, "one addition, rounded"},
    {"Statistic", tensor::DType::kF32, 1e-2, 1e-2,
     "mean, reciprocal deviation and log-sum-exp, of rounded inputs in bf16"},
    {"NormBackward", tensor::DType::kF32, 2e-4, 1e-4,
     "columns summed over 70 rows; the statistics were rounded"},
    {"NormBackward", tensor::DType::kBF16, 2e-2, 2.1 * kRoundBF16,
     "added to a rounded gradient and rounded"},
    {"Attention", tensor::DType::kF32, 1e-5, 1e-5, "an average of values of the order of 1"},
    {"Attention", tensor::DType::kBF16, kRoundBF16, 1.1 * kRoundBF16,
     "weights, which sum to one, are rounded, with errors that half cancel, before they meet "
     "values up to 2"},
    {"CachedAttention", tensor::DType::kF32, 1e-5, 1e-5, "an average of values of the order of 1"},
    {"CachedAttention", tensor::DType::kBF16, 1e-5, 1.01 * kRoundBF16, "fp32 inside, rounded once"},
    {"AttentionBackward", tensor::DType::kF32, 1e-4, 1e-4, "sums over the sequence"},
    {"AttentionBackward", tensor::DType::kBF16, 2e-2, 2 * kRoundBF16,
     "weights and their gradients are rounded; d_out . out is taken from a rounded output"},
    {"Rotary", tensor::DType::kF32, 1e-6, 1e-6, "sines rounded to fp32, two products"},
    {"Rotary", tensor::DType::kBF16, 1e-6, 1.1 * kRoundBF16, "rounded once, but for cancellation"},
    {"Activation", tensor::DType::kF32, 1e-6, 1e-6, "the polynomials' 1e-7 times inputs up to 8"},
    {"Activation", tensor::DType::kBF16, 1e-5, 1.1 * kRoundBF16, "fp32 inside, rounded once"},
    {"Epilogue", tensor::DType::kF32, 3e-4, 3e-5, "a product's tolerance times a slope below 3"},
    {"Epilogue", tensor::DType::kBF16, 1e-2, 4 * kRoundBF16,
     "the product may be rounded before the epilogue: once more than a product, times a slope"},
    {"Embedding", tensor::DType::kF32, 0, kRoundF32, "one addition"},
    {"Embedding", tensor::DType::kBF16, 0, 1.01 * kRoundBF16, "one addition, rounded"},
    {"ColumnSums", tensor::DType::kF32, 1e-5, 1e-5, "sums over rows in fp32"},
    {"CrossEntropy", tensor::DType::kF32, 1e-6, 1e-5, "sums of up to 1000 exponentials"},
    {"CrossEntropy", tensor::DType::kBF16, 1e-6, 1.1 * kRoundBF16, "fp32 inside, rounded once"},
    {"AdamW", tensor::DType::kF32, 1e-6, 1e-6,
     "some ten roundings, the last as the update is added; see also optimizer_reference_test"},
    {"AdamWUpdate", tensor::DType::kF32, 1e-6, 1e-6,
     "some ten roundings; m and decay may cancel, each of the order of 1"},
    {"AddScaled", tensor::DType::kF32, kRoundF32, 1.01 * kRoundF32,
     "the factor rounded, before values below 1; one fused addition"},
    {"AdamW", tensor::DType::kBF16, 1e-6, 1.01 * kRoundBF16, "the master, rounded"},
};

}  // namespace megascale::ops
