#include "runtime/ops/host_numbers.h"

#include <algorithm>
#include <cmath>

#include "runtime/tensor/sum_tree.h"

namespace megascale::ops {
namespace {

// Widening bf16 is exact.
double ToNumber(double value) { return value; }
double ToNumber(float value) { return value; }
double ToNumber(tensor::BFloat16 value) { return tensor::ToFloat(value); }

template <typename T>
double FirstNotFiniteIn(const Matrix& x) {
  for (int64_t row = 0; row < x.rows; ++row) {
    const T* values = x.as<const T>() + row * x.stride;
    for (int64_t col = 0; col < x.cols; ++col) {
      const double value = ToNumber(values[col]);
      if (!std::isfinite(value)) return value;
    }
  }
  return 0;
}

}  // namespace

double ClipFactor(double sum_of_squares, double clip_grad) {
  const double norm = std::sqrt(sum_of_squares);
  return clip_grad > 0 && norm > clip_grad ? clip_grad / norm : 1.0;
}

void CombineNormsOnHost(const CombineNormsArgs& args) {
  const int64_t num_ranks = args.ranks.size / kNumRankNumbers;
  const auto number = [&](int64_t rank, RankNumber which) {
    return args.ranks.as<const double>()[rank * kNumRankNumbers + which];
  };
  const auto sum = [&](RankNumber which) {
    return tensor::SumTree(0, num_ranks, [&](int64_t rank) { return number(rank, which); });
  };
  const double sum_of_squares = sum(kRankSumOfSquares), loss_sum = sum(kRankLossSum);
  double stop = 0;
  for (int64_t rank = 0; rank < num_ranks; ++rank) stop = std::max(stop, number(rank, kRankStop));
  if (args.sums) {
    double* const sums = args.sums.as<double>();
    sums[kRankSumOfSquares] = sum_of_squares;
    sums[kRankLossSum] = loss_sum;
    sums[kRankStop] = stop;
    return;
  }
  double* const numbers = args.step_numbers.as<double>();
  numbers[kSumOfSquares] = sum_of_squares;
  numbers[kLossSum] = loss_sum;
  numbers[kStop] = stop;
  numbers[kClipFactor] = ClipFactor(sum_of_squares, args.clip_grad);
  const bool is_finite = std::isfinite(loss_sum) && std::isfinite(std::sqrt(sum_of_squares));
  numbers[kIsFinite] = is_finite ? 1 : 0;
}

void FirstNotFiniteOnHost(const Matrix& x, const Vector& out) {
  double& found = *out.as<double>();
  if (x.dtype == DType::kF64) found = FirstNotFiniteIn<double>(x);
  if (x.dtype == DType::kF32) found = FirstNotFiniteIn<float>(x);
  if (x.dtype == DType::kBF16) found = FirstNotFiniteIn<tensor::BFloat16>(x);
}

double TrustFactor(const TrustStepArgs& args) {
  const int64_t num_sums = args.trust_sums.size / args.num_parts;
  const auto sum = [&](int64_t column) {
    return tensor::SumTree(0, args.num_parts, [&](int64_t part) {
      return args.trust_sums.as<const double>()[part * num_sums + column];
    });
  };
  const double weights = sum(args.first_sum), update = sum(args.first_sum + 1);
  const double ratio = weights > 0 && update > 0 ? std::sqrt(weights) / std::sqrt(update) : 1.0;
  return -NumberOf(args.step_numbers, kLearningRate) * ratio;
}

}  // namespace megascale::ops
