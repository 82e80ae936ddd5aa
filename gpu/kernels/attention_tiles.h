// Tiles of bf16 in shared memory, and products of tiles on tensor cores, for the kernels of
// attention. A warp computes 16 rows of a product. Registers hold fragments in the layout of
// mma.m16n8k16: of a result [16, 8] a lane has, in row lane / 4, the columns 2 * (lane % 4) and 2 *
// (lane % 4) + 1, then the same columns of row lane / 4 + 8.
#pragma once

#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

// Rows of kCols elements. The 16-byte chunks of a row are permuted by the row's number, so that the
// eight rows that a matrix load reads at once lie in different banks.
template <int kCols>
class Tile {
 public:
  MEGASCALE_DEVICE explicit Tile(const Shared<BFloat16>& data) : data_(data) {}
  // Returns the chunk of 8 elements at `col`, a multiple of 8.
  MEGASCALE_DEVICE Shared<BFloat16> At(int row, int col) const {
    return data_ + (row * kCols + ((col / 8) ^ (row % 8)) * 8);
  }

 private:
  Shared<BFloat16> data_;
};

// Begins to copy kRows rows of kCols elements from device memory; rows from `num_valid` on become
// zeros.
template <int kRows, int kCols>
MEGASCALE_DEVICE void CopyTile(const Tile<kCols>& to, const Global<const BFloat16>& from,
                               int64_t stride, int num_valid) {
  constexpr int kChunks = kCols / 8;
  for (int i = ThreadIndex(); i < kRows * kChunks; i += NumThreads()) {
    const int row = i / kChunks, col = i % kChunks * 8;
    CopyAsync<16>(to.At(row, col), from + (row * stride + col), row < num_valid);
  }
}

// Loads the first factor A [16, 16] from (row, col) of a tile.
template <int kCols>
MEGASCALE_DEVICE void LoadA(uint32_t (&a)[4], const Tile<kCols>& tile, int row, int col,
                            Where where = Where::current()) {
  LoadMatrices(a, tile.At(row + Lane() % 16, col + Lane() / 16 * 8), where);
}

// d [16, kN] += A [16, kCols] B^T, where the rows of A begin at `row` of `a_tile` and B is the
// first kN rows of `b_tile`.
template <int kN, int kCols>
MEGASCALE_DEVICE void MultiplyByTransposed(float (&d)[kN / 8][4], const Tile<kCols>& a_tile,
                                           int row, const Tile<kCols>& b_tile,
                                           Where where = Where::current()) {
  MEGASCALE_UNROLL
  for (int k = 0; k < kCols; k += 16) {
    uint32_t a[4];
    LoadA(a, a_tile, row, k, where);
    MEGASCALE_UNROLL
    for (int n = 0; n < kN; n += 16) {
      const int matrix = Lane() / 8;
      uint32_t b[4];
      LoadMatrices(b, b_tile.At(n + matrix / 2 * 8 + Lane() % 8, k + matrix % 2 * 8), where);
      const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
      MultiplyAdd(d[n / 8], a, first, where);
      MultiplyAdd(d[n / 8 + 1], a, second, where);
    }
  }
}

// d [16, kCols] += A [16, kK] B, where A is in registers and B is the first kK rows of a tile.
template <int kK, int kCols>
MEGASCALE_DEVICE void MultiplyByTile(float (&d)[kCols / 8][4], const uint32_t (&a)[kK / 16][4],
                                     const Tile<kCols>& b_tile, Where where = Where::current()) {
  MEGASCALE_UNROLL
  for (int k = 0; k < kK; k += 16) {
    MEGASCALE_UNROLL
    for (int n = 0; n < kCols; n += 16) {
      const int matrix = Lane() / 8;
      uint32_t b[4];
      LoadMatricesTransposed(b, b_tile.At(k + matrix % 2 * 8 + Lane() % 8, n + matrix / 2 * 8),
                             where);
      const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
      MultiplyAdd(d[n / 8], a[k / 16], first, where);
      MultiplyAdd(d[n / 8 + 1], a[k / 16], second, where);
    }
  }
}

// Rounds a result [16, kN] to the first factor of the next product; the fragments of both have the
// same layout.
template <int kN>
MEGASCALE_DEVICE void RoundToA(uint32_t (&a)[kN / 16][4], const float (&d)[kN / 8][4]) {
  MEGASCALE_UNROLL
  for (int n = 0; n < kN / 8; ++n) {
    a[n / 2][n % 2 * 2] = PackBFloat16(d[n][0], d[n][1]);
    a[n / 2][n % 2 * 2 + 1] = PackBFloat16(d[n][2], d[n][3]);
  }
}

// The row and column of element i of fragment n of a result.
MEGASCALE_DEVICE int RowOf(int i) { return Lane() / 4 + i / 2 * 8; }
MEGASCALE_DEVICE int ColOf(int n, int i) { return n * 8 + Lane() % 4 * 2 + i % 2; }

// Writes a result [16, kCols], each row times its factor, to rows `row`, row + 1 … of device
// memory; rows from `num_valid` on are left out.
template <int kCols>
MEGASCALE_DEVICE void WriteRows(const Global<BFloat16>& to, int64_t stride, int row, int num_valid,
                                const float (&d)[kCols / 8][4], const float (&factors)[2]) {
  const Global<uint32_t> pairs(static_cast<void*>(to.data()));
  MEGASCALE_UNROLL
  for (int n = 0; n < kCols / 8; ++n) {
    MEGASCALE_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const int64_t at = row + RowOf(i);
      if (at >= num_valid) continue;
      const float factor = factors[i / 2];
      pairs[(at * stride + ColOf(n, 0)) / 2] = PackBFloat16(d[n][i] * factor, d[n][i + 1] * factor);
    }
  }
}

}  // namespace megascale::kernels
