// Moves a few neighbouring elements of a row at a time: 16 bytes at once if the tensor is aligned
// and the row has all of these elements, otherwise element by element. In both cases a thread owns
// the same elements, so sums have the same order.
#pragma once

#include "gpu/kernels/rows_params.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

// Elements in 16 bytes.
template <typename T>
constexpr int kPackOf = 16 / sizeof(T);

template <typename T>
MEGASCALE_DEVICE Global<T> RowOf(const Rows& matrix, int64_t row) {
  return Global<T>(matrix.data) + row * matrix.stride;
}

// Up to N elements of a row, from `first` on.
struct Piece {
  int64_t first;
  int count;      // elements that the row has: 0 to N
  bool is_whole;  // all N, and aligned
};

template <int N>
MEGASCALE_DEVICE Piece PieceAt(int64_t first, int64_t cols, bool is_aligned) {
  const int count = first >= cols ? 0 : static_cast<int>(min(cols - first, int64_t{N}));
  return {first, count, is_aligned && count == N};
}

// The row of this thread's piece.
MEGASCALE_DEVICE int64_t MyRow(const RowSplit& split) { return BlockIndex() / split.blocks_of_row; }
template <int N>
MEGASCALE_DEVICE Piece MyPiece(const RowSplit& split) {
  const int64_t block = BlockIndex() % split.blocks_of_row;
  return PieceAt<N>((block * NumThreads() + ThreadIndex()) * N, split.cols, split.is_aligned);
}

// Returns the elements of `piece`, and zeros for elements that the row lacks. Load everything that
// a thread needs before you convert any of it, so that the loads run at the same time.
template <int N, typename T>
MEGASCALE_DEVICE Pack<T, N> LoadPiece(const Global<const T>& row, const Piece& piece) {
  static_assert(N * sizeof(T) <= 16);
  if (piece.is_whole) return row.template Load<N>(piece.first);
  Pack<T, N> pack;
  MEGASCALE_UNROLL
  for (int i = 0; i < N; ++i) pack.at[i] = i < piece.count ? row[piece.first + i] : T{};
  return pack;
}

// The same, as fp32 numbers. N elements may be more than 16 bytes.
template <int N, typename T>
MEGASCALE_DEVICE void LoadFloats(const Global<const T>& row, const Piece& piece, float (&to)[N]) {
  constexpr int kMoved = N < kPackOf<T> ? N : kPackOf<T>;
  MEGASCALE_UNROLL
  for (int i = 0; i < N; i += kMoved) {
    const Piece part = {piece.first + i, piece.count - i, piece.is_whole};
    const Pack<T, kMoved> pack = LoadPiece<kMoved>(row, part);
    MEGASCALE_UNROLL
    for (int j = 0; j < kMoved; ++j) to[i + j] = ToFloat(pack.at[j]);
  }
}

// Writes `from`, rounded, to the elements of `piece`.
template <int N, typename T>
MEGASCALE_DEVICE void StoreFloats(const Global<T>& row, const Piece& piece,
                                  const float (&from)[N]) {
  constexpr int kMoved = N < kPackOf<T> ? N : kPackOf<T>;
  if (piece.is_whole) {
    MEGASCALE_UNROLL
    for (int i = 0; i < N; i += kMoved) {
      Pack<T, kMoved> pack;
      MEGASCALE_UNROLL
      for (int j = 0; j < kMoved; ++j) pack.at[j] = FromFloat<T>(from[i + j]);
      row.Store(piece.first + i, pack);
    }
    return;
  }
  MEGASCALE_UNROLL
  for (int i = 0; i < N; ++i) {
    if (i < piece.count) row[piece.first + i] = FromFloat<T>(from[i]);
  }
}

}  // namespace megascale::kernels
