// AdamW, the second part of LAMB's step, and the numbers of a step.
//
// AdamW of a list of slices: master, exp_avg, exp_avg_sq, grad [n] fp32, compute copy [n]. Block b
// belongs to the slice in whose range of blocks it lies, found by halving; each thread takes 8
// packs of 4 elements, 256 packs apart. Bytes for an element: 16 read, 12 written, and the copy's 2
// or 4; as LAMB's update 16 read, 12 written. No shared memory, no sums.
//
// The step's numbers stay on the device: AdamWFactors, one thread, makes the factors in fp64 and
// rounds them to fp32; TrustFactors does so for each slice of TrustStep, and adds the parts' sums
// as the host does. Each rounding is that of the CPU's kernels (runtime/ops/cpu/elements.cc), so
// that the results in fp32 are the same bits but where fp64 powers differ.
//
// Slices begin anywhere. If all tensors of one begin equally far from a pack's boundary, its packs
// are those of the address, and the first and last are partly outside of the slice.
#include "gpu/kernels/optimizer_params.h"
#include "gpu/kernels/packs.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

// Adds value(0) … value(count - 1) in the order of runtime/tensor/sum_tree.h. Requires: 1 <= count
// <= 2^20.
template <typename Value>
MEGASCALE_DEVICE double SumTree(int64_t count, const Value& value) {
  double waiting[20];  // sums that wait for their right half
  int level = 0;       // as many of them
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum = value(i);
    const bool is_last = i + 1 == count;
    for (int64_t ones = i; level > 0 && (is_last || ones % 2 == 1); ones /= 2) {
      sum = waiting[--level] + sum;
    }
    if (!is_last) waiting[level++] = sum;
  }
  return sum;
}

MEGASCALE_KERNEL(AdamWFactorsF32, AdamWFactorsParams, 32) {
  if (ThreadIndex() != 0) return;
  const Global<const double> numbers(params.step_numbers);
  const double step = numbers[kStepPlace];
  AdamWFactors factors;
  factors.beta1 = static_cast<float>(params.beta1);
  factors.one_less_beta1 = static_cast<float>(1 - params.beta1);
  factors.beta2 = static_cast<float>(params.beta2);
  factors.one_less_beta2 = static_cast<float>(1 - params.beta2);
  factors.grad_scale = static_cast<float>(numbers[kClipFactorPlace]);
  factors.eps = static_cast<float>(params.eps);
  factors.correction = static_cast<float>(1 / (1 - Pow(params.beta1, step)));
  factors.root_correction = static_cast<float>(1 / Sqrt(1 - Pow(params.beta2, step)));
  factors.rate = static_cast<float>(numbers[kLearningRatePlace]);
  factors.is_finite = numbers[kIsFinitePlace] != 0;
  Global<AdamWFactors>(params.factors)[0] = factors;
}

namespace {

constexpr int kPack = kOptimizerPack;

// Returns the slice to which this block belongs: the last one that begins at or before it.
template <typename Params>
MEGASCALE_DEVICE int SliceOfBlock(const Params& params) {
  int first = 0, end = params.num_slices;
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    if (params.slices[middle].blocks.first_block <= BlockIndex()) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return first;
}

// Calls use(place) for each of this thread's packs.
template <typename Use>
MEGASCALE_DEVICE void ForEachPack(const SliceBlocks& blocks, int64_t size, const Use& use) {
  const bool is_aligned = blocks.skew >= 0;
  const int64_t block = BlockIndex() - blocks.first_block;
  int64_t first =
      block * kElementsPerBlock + ThreadIndex() * kPack - (is_aligned ? blocks.skew : 0);
  for (int i = 0; i < kPacksPerThread && first < size; ++i) {
    use(PackPlace{first, size, is_aligned});
    first += kOptimizerThreads * kPack;
  }
}

MEGASCALE_DEVICE Pack<float, kPack> LoadFloats(const float* x, const PackPlace& place) {
  return LoadPack<kPack>(Global<const float>(x), place, 0.0f);
}

// Updates the moments and calls use(slice, place, weights, updates). `use` then changes a weight in
// one operation, which rounds once.
template <typename Use>
MEGASCALE_DEVICE void ForEachUpdate(const AdamWParams& params, const Use& use) {
  const AdamWFactors f = Global<const AdamWFactors>(params.factors)[0];
  if (!f.is_finite) return;
  const AdamWSlice& slice = params.slices[SliceOfBlock(params)];
  ForEachPack(slice.blocks, slice.size, [&](const PackPlace& place) {
    const Pack<float, kPack> weights = LoadFloats(slice.master, place);
    const Pack<float, kPack> grads = LoadFloats(slice.grad, place);
    Pack<float, kPack> first = LoadFloats(slice.exp_avg, place);
    Pack<float, kPack> second = LoadFloats(slice.exp_avg_sq, place);
    Pack<float, kPack> updates;
    for (int j = 0; j < kPack; ++j) {
      const float grad = grads.at[j] * f.grad_scale;
      first.at[j] = FusedMultiplyAdd(first.at[j], f.beta1, grad * f.one_less_beta1);
      second.at[j] = FusedMultiplyAdd(second.at[j], f.beta2, grad * grad * f.one_less_beta2);
      const float root = FusedMultiplyAdd(Sqrt(second.at[j]), f.root_correction, f.eps);
      updates.at[j] =
          FusedMultiplyAdd(f.correction, first.at[j] / root, weights.at[j] * slice.weight_decay);
    }
    StorePack(Global<float>(slice.exp_avg), place, first);
    StorePack(Global<float>(slice.exp_avg_sq), place, second);
    use(slice, place, f.rate, weights, updates);
  });
}

// T: the type of the compute copy.
template <typename T>
MEGASCALE_DEVICE void AdamW(const AdamWParams& params) {
  ForEachUpdate(params, [](const AdamWSlice& slice, const PackPlace& place, float rate,
                           const Pack<float, kPack>& weights, const Pack<float, kPack>& updates) {
    Pack<float, kPack> updated;
    Pack<T, kPack> copy;
    for (int j = 0; j < kPack; ++j) {
      updated.at[j] = FusedMultiplyAdd(-rate, updates.at[j], weights.at[j]);
      copy.at[j] = FromFloat<T>(updated.at[j]);
    }
    StorePack(Global<float>(slice.master), place, updated);
    if (slice.out != nullptr) StorePack(Global<T>(slice.out), place, copy);
  });
}

}  // namespace

MEGASCALE_KERNEL(AdamWF32, AdamWParams, kOptimizerThreads) { AdamW<float>(params); }
MEGASCALE_KERNEL(AdamWBF16, AdamWParams, kOptimizerThreads) { AdamW<BFloat16>(params); }

MEGASCALE_KERNEL(AdamWUpdateF32, AdamWParams, kOptimizerThreads) {
  ForEachUpdate(params,
                [](const AdamWSlice& slice, const PackPlace& place, float /*rate*/,
                   const Pack<float, kPack>& /*weights*/, const Pack<float, kPack>& updates) {
                  StorePack(Global<float>(slice.out), place, updates);
                });
}

// A thread for each slice.
MEGASCALE_KERNEL(TrustFactorsF32, TrustStepParams, 64) {
  if (ThreadIndex() >= params.num_slices) return;
  const TrustSlice& slice = params.slices[ThreadIndex()];
  const Global<const double> sums(slice.sums);
  const Global<const double> numbers(slice.step_numbers);
  const double weights =
      SumTree(slice.num_parts, [&](int64_t part) -> double { return sums[part * slice.stride]; });
  const double update = SumTree(
      slice.num_parts, [&](int64_t part) -> double { return sums[part * slice.stride + 1]; });
  const double ratio = weights > 0 && update > 0 ? Sqrt(weights) / Sqrt(update) : 1.0;
  TrustFactor factor;
  factor.scale = static_cast<float>(-numbers[kLearningRatePlace] * ratio);
  factor.is_finite = numbers[kIsFinitePlace] != 0;
  Global<TrustFactor>(params.factors)[ThreadIndex()] = factor;
}

MEGASCALE_KERNEL(TrustStepF32, TrustStepParams, kOptimizerThreads) {
  const int index = SliceOfBlock(params);
  const TrustFactor factor = Global<const TrustFactor>(params.factors)[index];
  if (!factor.is_finite) return;
  const TrustSlice& slice = params.slices[index];
  ForEachPack(slice.blocks, slice.size, [&](const PackPlace& place) {
    Pack<float, kPack> weights = LoadFloats(slice.master, place);
    const Pack<float, kPack> updates = LoadFloats(slice.update, place);
    for (int j = 0; j < kPack; ++j) {
      weights.at[j] = FusedMultiplyAdd(factor.scale, updates.at[j], weights.at[j]);
    }
    StorePack(Global<float>(slice.master), place, weights);
  });
}

// One thread; ranks are few.
MEGASCALE_KERNEL(CombineNormsF64, CombineNormsParams, 32) {
  if (ThreadIndex() != 0) return;
  const Global<const double> ranks(params.ranks);
  const auto sum = [&](int place) {
    return SumTree(params.num_ranks, [&](int64_t rank) -> double {
      return ranks[rank * kNumRankNumberPlaces + place];
    });
  };
  const double sum_of_squares = sum(kRankSumOfSquaresPlace);
  const double loss_sum = sum(kRankLossSumPlace);
  double stop = 0;
  for (int64_t i = 0; i < params.num_ranks; ++i) {
    const double its_stop = ranks[i * kNumRankNumberPlaces + kRankStopPlace];
    stop = its_stop > stop ? its_stop : stop;
  }
  if (params.sums != nullptr) {
    const Global<double> sums(params.sums);
    sums[kRankSumOfSquaresPlace] = sum_of_squares;
    sums[kRankLossSumPlace] = loss_sum;
    sums[kRankStopPlace] = stop;
    return;
  }
  const double norm = Sqrt(sum_of_squares);
  const bool is_clipped = params.clip_grad > 0 && norm > params.clip_grad;
  const bool is_finite = loss_sum - loss_sum == 0 && norm - norm == 0;
  const Global<double> numbers(params.step_numbers);
  numbers[kSumOfSquaresPlace] = sum_of_squares;
  numbers[kLossSumPlace] = loss_sum;
  numbers[kStopPlace] = stop;
  numbers[kClipFactorPlace] = is_clipped ? params.clip_grad / norm : 1.0;
  numbers[kIsFinitePlace] = is_finite ? 1 : 0;
}

}  // namespace megascale::kernels
