// Reads and writes a few neighbouring elements at once. Some of them may lie outside of the tensor.
#pragma once

#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

// The place of a pack in a vector of `size` elements. The pack begins at element `first`, which may
// be before the vector, and may end after the vector.
struct PackPlace {
  int64_t first;
  int64_t size;
  bool is_aligned;  // whether the address of `first` is a multiple of the pack's bytes
};

// Returns kNum elements; elements outside of the vector are `outside`.
template <int kNum, typename T>
MEGASCALE_DEVICE Pack<T, kNum> LoadPack(const Global<const T>& x, const PackPlace& place,
                                        T outside) {
  const int64_t first = place.first;
  if (place.is_aligned && first >= 0 && first + kNum <= place.size) {
    return x.template Load<kNum>(first);
  }
  Pack<T, kNum> pack;
  for (int j = 0; j < kNum; ++j) {
    pack.at[j] = first + j >= 0 && first + j < place.size ? x[first + j] : outside;
  }
  return pack;
}

// Writes the elements that lie in the vector.
template <int kNum, typename T>
MEGASCALE_DEVICE void StorePack(const Global<T>& out, const PackPlace& place,
                                const Pack<T, kNum>& pack) {
  const int64_t first = place.first;
  if (place.is_aligned && first >= 0 && first + kNum <= place.size) {
    out.template Store<kNum>(first, pack);
    return;
  }
  for (int j = 0; j < kNum; ++j) {
    if (first + j >= 0 && first + j < place.size) out[first + j] = pack.at[j];
  }
}

}  // namespace megascale::kernels
