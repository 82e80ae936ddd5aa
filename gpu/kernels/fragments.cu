// Shows which element of a matrix each lane and register gets from the words for tensor cores, so
// that a test can compare hardware, and the emulator, with the tables of the PTX manual
// (section 9.7.14.5, mma.m16n8k16; ldmatrix). No operator uses it.
//
// One warp copies A and B [16, 64] to shared memory, loads the first 16 columns of A as fragments,
// plain and transposed, and multiplies: A B^T [16, 16] and A[:, :16] B [16, 64]. It writes every
// register of every lane. Shared memory: 4 KiB.
#include "gpu/kernels/attention_tiles.h"
#include "gpu/kernels/fragments_params.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

template <int kN>
MEGASCALE_DEVICE void WriteNumbers(const Global<float>& to, const float (&d)[kN][4]) {
  MEGASCALE_UNROLL
  for (int n = 0; n < kN; ++n) {
    MEGASCALE_UNROLL
    for (int i = 0; i < 4; ++i) to[(n * 4 + i) * kLanes + Lane()] = d[n][i];
  }
}

MEGASCALE_KERNEL(ShowFragments, ShowFragmentsParams, 32) {
  constexpr int kRows = kFragmentRows, kCols = kFragmentCols;
  const Tile<kCols> a_tile(DynamicShared<BFloat16>(0));
  const Tile<kCols> b_tile(DynamicShared<BFloat16>(kRows * kCols * sizeof(BFloat16)));
  CopyTile<kRows, kCols>(a_tile, Global<const BFloat16>(params.a), kCols, kRows);
  CopyTile<kRows, kCols>(b_tile, Global<const BFloat16>(params.b), kCols, kRows);
  CommitCopies();
  WaitCopies<0>();
  SyncThreads();

  uint32_t loaded[1][4], transposed[4];
  LoadA(loaded[0], a_tile, 0, 0);
  LoadMatricesTransposed(transposed, a_tile.At(Lane() % 16, Lane() / 16 * 8));
  const Global<uint32_t> words(params.words);
  MEGASCALE_UNROLL
  for (int i = 0; i < 4; ++i) {
    words[i * kLanes + Lane()] = loaded[0][i];
    words[(4 + i) * kLanes + Lane()] = transposed[i];
  }

  float by_transposed[kRows / 8][4] = {}, by_tile[kCols / 8][4] = {};
  MultiplyByTransposed<kRows, kCols>(by_transposed, a_tile, 0, b_tile);
  MultiplyByTile<kRows, kCols>(by_tile, loaded, b_tile);
  const Global<float> numbers(params.numbers);
  WriteNumbers(numbers, by_transposed);
  WriteNumbers(numbers + kRows / 8 * 4 * kLanes, by_tile);
}

}  // namespace megascale::kernels
