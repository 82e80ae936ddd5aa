// Sums and maxima over the threads of a warp or a block, in an order that follows from the number
// of threads alone.
#pragma once

#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

struct Sum {
  template <typename T>
  MEGASCALE_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Greatest {
  MEGASCALE_DEVICE float operator()(float a, float b) const { return a > b ? a : b; }
};

// Returns, on every lane, the combination of the values of all lanes.
template <typename T, typename Combine>
MEGASCALE_DEVICE T ReduceWarp(T value, Combine combine, Where where = Where::current()) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    value = combine(value, ShuffleXor(value, mask, where));
  }
  return value;
}

// Returns, on every thread, the combination of the values of all threads of the block. Requires:
// `scratch` has room for kLanes elements, and the block has not used it before.
template <typename T, typename Combine>
MEGASCALE_DEVICE T ReduceBlockOnce(T value, Combine combine, Shared<T> scratch,
                                   Where where = Where::current()) {
  value = ReduceWarp(value, combine, where);
  if (Lane() == 0) scratch[Warp()] = value;
  SyncThreads(where);
  // Every thread adds the warps' values in their order.
  T total = scratch[0];
  for (int i = 1; i < NumWarps(); ++i) total = combine(total, static_cast<T>(scratch[i]));
  return total;
}

}  // namespace megascale::kernels
