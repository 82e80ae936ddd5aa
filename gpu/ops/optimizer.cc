#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "gpu/kernels/optimizer_params.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using kernels::kSlicesMax;
using tensor::DType;
using tensor::Vector;

static_assert(kernels::kLearningRatePlace == int{ops::kLearningRate});
static_assert(kernels::kStepPlace == int{ops::kStep});
static_assert(kernels::kClipFactorPlace == int{ops::kClipFactor});
static_assert(kernels::kIsFinitePlace == int{ops::kIsFinite});
static_assert(kernels::kSumOfSquaresPlace == int{ops::kSumOfSquares});
static_assert(kernels::kLossSumPlace == int{ops::kLossSum});
static_assert(kernels::kStopPlace == int{ops::kStop});
static_assert(kernels::kRankSumOfSquaresPlace == int{ops::kRankSumOfSquares});
static_assert(kernels::kRankLossSumPlace == int{ops::kRankLossSum});
static_assert(kernels::kRankStopPlace == int{ops::kRankStop});
static_assert(kernels::kNumRankNumberPlaces == int{ops::kNumRankNumbers});

// Returns how many elements before the first one of each vector the boundary of a pack lies; -1 if
// the vectors differ. Empty vectors do not count.
int32_t SkewOf(std::initializer_list<Vector> vectors) {
  int32_t skew = -1;
  for (const Vector& vector : vectors) {
    if (!vector) continue;
    const auto element = static_cast<uintptr_t>(tensor::SizeOf(vector.dtype));
    const auto its_skew = static_cast<int32_t>(reinterpret_cast<uintptr_t>(vector.data) / element %
                                               kernels::kOptimizerPack);
    if (skew >= 0 && skew != its_skew) return -1;
    skew = its_skew;
  }
  return skew;
}

// Collects slices into a kernel's argument, until it is full or another argument has to begin.
template <typename Params>
class SliceList {
 public:
  // Returns the blocks of the next slice.
  kernels::SliceBlocks Place(int64_t size, int32_t skew) {
    const int64_t elements = size + std::max(skew, 0);
    const int64_t blocks = DivideUp(elements, kernels::kElementsPerBlock);
    MEGASCALE_CHECK(num_blocks_ + blocks <= std::numeric_limits<int32_t>::max());
    const auto first_block = static_cast<int32_t>(num_blocks_);
    num_blocks_ += blocks;
    return {first_block, skew};
  }
  template <typename Slice>
  void Add(const Slice& slice) {
    MEGASCALE_CHECK(!is_full());
    params.slices[params.num_slices++] = slice;
  }
  bool is_empty() const { return params.num_slices == 0; }
  bool is_full() const { return params.num_slices == kSlicesMax; }
  LaunchShape shape() const {
    return {.grid = {static_cast<int>(num_blocks_), 1, 1}, .threads = kernels::kOptimizerThreads};
  }
  void Clear() {
    params.num_slices = 0;
    num_blocks_ = 0;
  }

  Params params = {};

 private:
  int64_t num_blocks_ = 0;
};

const char* AdamWKernelFor(const ops::AdamWArgs& args) {
  if (args.update) return "AdamWUpdateF32";
  return args.compute_copy && args.compute_copy.dtype == DType::kBF16 ? "AdamWBF16" : "AdamWF32";
}

bool HaveSameFactors(const ops::AdamWArgs& a, const ops::AdamWArgs& b) {
  return a.step_numbers.data == b.step_numbers.data && a.beta1 == b.beta1 && a.beta2 == b.beta2 &&
         a.eps == b.eps;
}

void LaunchFactors(Launcher& launcher, const ops::AdamWArgs& args, kernels::AdamWFactors* factors) {
  launcher.Launch("AdamWFactorsF32", {.threads = 32},
                  kernels::AdamWFactorsParams{.step_numbers = args.step_numbers.as<const double>(),
                                              .beta1 = args.beta1,
                                              .beta2 = args.beta2,
                                              .eps = args.eps,
                                              .factors = factors});
}

}  // namespace

void AdamW(Launcher& launcher, absl::Span<const ops::AdamWArgs> list) {
  // Launches that follow each other share the factors: the stream keeps their order.
  auto* const factors =
      static_cast<kernels::AdamWFactors*>(launcher.Workspace(sizeof(kernels::AdamWFactors)));
  SliceList<kernels::AdamWParams> slices;
  slices.params.factors = factors;
  const ops::AdamWArgs* last = nullptr;
  const auto launch = [&] {
    if (!slices.is_empty()) launcher.Launch(AdamWKernelFor(*last), slices.shape(), slices.params);
    slices.Clear();
  };
  for (const ops::AdamWArgs& args : list) {
    CheckArguments(args, args.compute_copy ? args.compute_copy.dtype : DType::kF32);
    const int64_t size = args.master.size;
    if (size == 0) continue;
    const bool has_same_factors = last != nullptr && HaveSameFactors(*last, args);
    const bool has_same_kernel = last != nullptr && AdamWKernelFor(*last) == AdamWKernelFor(args);
    if (slices.is_full() || !has_same_factors || !has_same_kernel) launch();
    if (!has_same_factors) LaunchFactors(launcher, args, factors);
    const Vector& out = args.update ? args.update : args.compute_copy;
    const int32_t skew = SkewOf({args.master, args.exp_avg, args.exp_avg_sq, args.grad, out});
    slices.Add(kernels::AdamWSlice{.master = args.master.as<float>(),
                                   .exp_avg = args.exp_avg.as<float>(),
                                   .exp_avg_sq = args.exp_avg_sq.as<float>(),
                                   .grad = args.grad.as<const float>(),
                                   .out = out.data,
                                   .size = size,
                                   .blocks = slices.Place(size, skew),
                                   .weight_decay = static_cast<float>(args.weight_decay)});
    last = &args;
  }
  launch();
}

void TrustStep(Launcher& launcher, absl::Span<const ops::TrustStepArgs> list) {
  auto* const factors = static_cast<kernels::TrustFactor*>(
      launcher.Workspace(sizeof(kernels::TrustFactor) * kSlicesMax));
  SliceList<kernels::TrustStepParams> slices;
  slices.params.factors = factors;
  const auto launch = [&] {
    if (slices.is_empty()) return;
    launcher.Launch("TrustFactorsF32", {.threads = 64}, slices.params);
    launcher.Launch("TrustStepF32", slices.shape(), slices.params);
    slices.Clear();
  };
  for (const ops::TrustStepArgs& args : list) {
    CheckArguments(args, DType::kF32);
    const int64_t size = args.master.size;
    if (size == 0) continue;
    if (slices.is_full()) launch();
    slices.Add(
        kernels::TrustSlice{.master = args.master.as<float>(),
                            .update = args.update.as<const float>(),
                            .sums = args.trust_sums.as<const double>() + args.first_sum,
                            .step_numbers = args.step_numbers.as<const double>(),
                            .size = size,
                            .blocks = slices.Place(size, SkewOf({args.master, args.update})),
                            .num_parts = static_cast<int32_t>(args.num_parts),
                            .stride = static_cast<int32_t>(args.trust_sums.size / args.num_parts)});
  }
  launch();
}

void CombineNorms(Launcher& launcher, const ops::CombineNormsArgs& args) {
  CheckArguments(args);
  launcher.Launch("CombineNormsF64", {.threads = 32},
                  kernels::CombineNormsParams{
                      .ranks = args.ranks.as<const double>(),
                      .num_ranks = static_cast<int32_t>(args.ranks.size / ops::kNumRankNumbers),
                      .sums = args.sums.as<double>(),
                      .clip_grad = args.clip_grad,
                      .step_numbers = args.step_numbers.as<double>()});
}

}  // namespace megascale::gpu
