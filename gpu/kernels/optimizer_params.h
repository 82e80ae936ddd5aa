// Arguments of the kernels in optimizer.cu. A kernel's argument has at most 4 KB, and contains the
// list of slices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megascale::kernels {

constexpr size_t kParamsBytesMax = 4096;
constexpr int kSlicesMax = 63;  // of a launch

// Blocks take a fixed number of elements, so that each block belongs to one slice.
constexpr int kOptimizerThreads = 256;
constexpr int kOptimizerPack = 4;  // elements of fp32 in 16 bytes
constexpr int kPacksPerThread = 8;
constexpr int kElementsPerBlock = kOptimizerThreads * kOptimizerPack * kPacksPerThread;

// Places in the vector of a step's numbers, equal to those of runtime/ops/step_numbers.h.
enum StepNumberPlace : uint8_t {
  kLearningRatePlace,
  kStepPlace,
  kClipFactorPlace,
  kIsFinitePlace,
  kSumOfSquaresPlace,
  kLossSumPlace,
  kStopPlace,
};
enum RankNumberPlace : uint8_t {
  kRankSumOfSquaresPlace,
  kRankLossSumPlace,
  kRankStopPlace,
  kNumRankNumberPlaces,
};

// The numbers of an AdamW step, rounded to fp32.
struct AdamWFactors {
  float beta1, one_less_beta1;
  float beta2, one_less_beta2;
  float grad_scale;
  float eps;
  float correction;       // 1 / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float rate;
  bool is_finite;  // otherwise nothing changes
};

struct AdamWFactorsParams {
  const double* step_numbers;
  double beta1, beta2, eps;
  AdamWFactors* factors;  // [1] out
};

// Where the blocks of a slice begin, and how its elements lie in packs.
struct SliceBlocks {
  int32_t first_block;
  // Number of elements from a pack's boundary to the slice's first element; -1: the slice's tensors
  // do not all have the same skew, and are read element by element.
  int32_t skew;
};

struct AdamWSlice {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad;
  void* out;  // the compute copy, or null; with AdamWUpdate, u
  int64_t size;
  SliceBlocks blocks;
  float weight_decay;
};
struct AdamWParams {
  const AdamWFactors* factors;
  int32_t num_slices;
  AdamWSlice slices[kSlicesMax];
};
static_assert(sizeof(AdamWParams) <= kParamsBytesMax);

struct TrustFactor {
  float scale;     // -lr * ratio
  bool is_finite;  // otherwise nothing changes
};
struct TrustSlice {
  float* master;
  const float* update;
  const double* sums;  // [num_parts, stride]: of the weights, then of the update, by part
  const double* step_numbers;
  int64_t size;
  SliceBlocks blocks;
  int32_t num_parts, stride;
};
// The argument of TrustFactors and TrustStep.
struct TrustStepParams {
  TrustFactor* factors;  // [num_slices]: TrustFactors writes, TrustStep reads
  int32_t num_slices;
  TrustSlice slices[kSlicesMax];
};
static_assert(sizeof(TrustStepParams) <= kParamsBytesMax);

struct CombineNormsParams {
  const double* ranks;  // [num_ranks, kNumRankNumberPlaces]
  int32_t num_ranks;
  double* sums;  // null: makes the step's numbers
  double clip_grad;
  double* step_numbers;
};

}  // namespace megascale::kernels
