// Single numbers from many: the sum of squares that becomes the norm of the gradient, totals in a
// given order, and the first value that is not finite.
//
// Sum of squares of x [N] fp32, in fp64: squares are exact there. Block b of B takes the packs of 4
// elements b * 256 + t, then every B * 256th; each thread has a sum for each place in a pack, adds
// the four, and the block adds its threads' sums by warps. A second kernel of one block adds the
// blocks' sums. B follows from N, and whether a pack is read at once or by elements changes no
// order: the bits follow from the size alone. Bytes: 4 N read, 16 B between the kernels.
//
// A total adds x [N] fp64 one after the other. One warp reads 32 elements ahead of those that it
// adds; each lane makes all the additions, so that the chain has nothing but them in it. Bytes: 8
// N.
//
// The first not finite of x [R, C]: each thread goes through its packs in ascending order and stops
// at the first find; the block keeps the least index with its value, and a second kernel the least
// of all blocks. Bytes: those of x. Shared memory of each reduction: 32 elements of 8 bytes.
#include "gpu/kernels/numbers_params.h"
#include "gpu/kernels/packs.h"
#include "gpu/kernels/reduce.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

MEGASCALE_KERNEL(SumOfSquaresF32, SumOfSquaresParams, 256) {
  constexpr int kPack = 4;
  const Global<const float> x(params.x);
  const int64_t step = static_cast<int64_t>(NumBlocks()) * NumThreads() * kPack;
  const int64_t begin = (static_cast<int64_t>(BlockIndex()) * NumThreads() + ThreadIndex()) * kPack;
  double sums[kPack] = {0, 0, 0, 0};
  for (int64_t i = begin; i < params.size; i += step) {
    const Pack<float, kPack> pack = LoadPack<kPack>(x, {i, params.size, params.is_aligned}, 0.0f);
    for (int j = 0; j < kPack; ++j) sums[j] += static_cast<double>(pack.at[j]) * pack.at[j];
  }
  const double total =
      ReduceBlockOnce((sums[0] + sums[1]) + (sums[2] + sums[3]), Sum(), DynamicShared<double>(0));
  if (ThreadIndex() != 0) return;
  if (NumBlocks() == 1) {
    Global<double>(params.out)[0] += total;
  } else {
    Global<double>(params.partials)[BlockIndex()] = total;
  }
}

MEGASCALE_KERNEL(AddPartialsF64, AddPartialsParams, 256) {
  const Global<const double> partials(params.partials);
  double sum = 0;
  for (int i = ThreadIndex(); i < params.num_partials; i += NumThreads()) sum += partials[i];
  const double total = ReduceBlockOnce(sum, Sum(), DynamicShared<double>(0));
  if (ThreadIndex() == 0) Global<double>(params.out)[0] += total;
}

MEGASCALE_KERNEL(AddTotalF64, AddTotalParams, 32) {
  const Global<const double> x(params.x);
  const Global<double> out(params.out);
  double total = out[0];
  double ahead = Lane() < params.size ? x[Lane()] : 0;
  for (int64_t first = 0; first < params.size; first += kLanes) {
    const double mine = ahead;
    const int64_t next = first + kLanes + Lane();
    ahead = next < params.size ? x[next] : 0;
    // Behind the end are zeros.
    for (int i = 0; i < kLanes; ++i) total += Shuffle(mine, i);
  }
  if (Lane() == 0) out[0] = total;
}

namespace {

struct Least {
  MEGASCALE_DEVICE int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

// Widening is exact.
MEGASCALE_DEVICE double ToDouble(double x) { return x; }
MEGASCALE_DEVICE double ToDouble(float x) { return x; }
MEGASCALE_DEVICE double ToDouble(BFloat16 x) { return ToFloat(x); }

MEGASCALE_DEVICE bool IsFinite(double x) { return x - x == 0; }

// Returns this thread's first find among rows BlockIndexY, + NumBlocksY ..., and in them the packs
// of its threads and blocks.
template <typename T>
MEGASCALE_DEVICE NotFinite FirstOfThread(const FindNotFiniteParams& params) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t step = static_cast<int64_t>(NumBlocks()) * NumThreads() * kPack;
  const int64_t begin = (static_cast<int64_t>(BlockIndex()) * NumThreads() + ThreadIndex()) * kPack;
  for (int64_t row = BlockIndexY(); row < params.rows; row += NumBlocksY()) {
    const Global<const T> x = Global<const T>(params.x) + row * params.stride;
    for (int64_t col = begin; col < params.cols; col += step) {
      const Pack<T, kPack> pack = LoadPack<kPack>(x, {col, params.cols, params.is_aligned}, T{});
      int found = kPack;
      for (int j = kPack - 1; j >= 0; --j) found = IsFinite(ToDouble(pack.at[j])) ? found : j;
      if (found < kPack) return {row * params.cols + col + found, ToDouble(x[col + found])};
    }
  }
  return {kNoIndex, 0};
}

// The one thread whose find is the block's first writes it; thread 0 where there is none.
MEGASCALE_DEVICE bool IsWriter(const NotFinite& mine, int64_t first) {
  return first == kNoIndex ? ThreadIndex() == 0 : mine.index == first;
}

template <typename T>
MEGASCALE_DEVICE void FindNotFinite(const FindNotFiniteParams& params) {
  const NotFinite mine = FirstOfThread<T>(params);
  const int64_t first = ReduceBlockOnce(mine.index, Least(), DynamicShared<int64_t>(0));
  if (!IsWriter(mine, first)) return;
  Global<NotFinite>(params.found)[BlockIndexY() * NumBlocks() + BlockIndex()] = mine;
}

}  // namespace

MEGASCALE_KERNEL(FindNotFiniteF64, FindNotFiniteParams, 256) { FindNotFinite<double>(params); }
MEGASCALE_KERNEL(FindNotFiniteF32, FindNotFiniteParams, 256) { FindNotFinite<float>(params); }
MEGASCALE_KERNEL(FindNotFiniteBF16, FindNotFiniteParams, 256) { FindNotFinite<BFloat16>(params); }

MEGASCALE_KERNEL(PickNotFiniteF64, PickNotFiniteParams, 256) {
  const Global<const NotFinite> found(params.found);
  NotFinite mine = {kNoIndex, 0};
  for (int i = ThreadIndex(); i < params.num_found; i += NumThreads()) {
    const NotFinite other = found[i];
    if (other.index < mine.index) mine = other;
  }
  const int64_t first = ReduceBlockOnce(mine.index, Least(), DynamicShared<int64_t>(0));
  if (IsWriter(mine, first)) Global<double>(params.out)[0] = mine.value;
}

}  // namespace megascale::kernels
