// Blocks of bf16 and fp32: packing rows into blocks, multiplying blocks, writing them back.
// Requires: MultipliesBFloat16() (matmul.h); OnTiles also requires AMX tiles.
//
// The layouts are those of AMX. A tile is 16 rows of 64 bytes: fp32 [16, 16]; bf16 [16, 32] as the
// left factor of a product; or bf16 [16, 16, 2] as the right factor, where the first and the last
// index together are the summed index: 2 * first + last. AVX512-BF16 also sums over pairs and uses
// the same layouts. All work is done in blocks of 32 x 32. A bf16 block consists of two adjacent
// tiles, an fp32 block of four. Blocks are aligned to 64 bytes. Legend: D columns, E padded to 32;
// S rows padded to 32.
#pragma once

// GCC 12 warns about the undefined vectors that the intrinsics use.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/ops/cpu/kernels.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,fma,avx2")

namespace megascale::ops::cpu::blocks {

constexpr int64_t kBlock = 32;
constexpr int64_t kTileFloats = 256;
constexpr int64_t kBlockHalves = kBlock * kBlock;
constexpr int64_t kBlockFloats = kBlock * kBlock;
using Half = uint16_t;  // the bits of a bf16

constexpr int64_t BlocksOf(int64_t size) { return (size + kBlock - 1) / kBlock; }

// A factor's blocks along the summed index, `step` elements apart.
struct Factor {
  const Half* blocks;
  int64_t step;
};

struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline constexpr TileConfig kTileConfig;

// Products on AMX tiles. The tile shapes are configured while an object of this class lives.
class OnTiles {
 public:
  // The configuration must be constant data, because GCC's intrinsic names only its first bytes,
  // and the compiler may drop stores to the other bytes.
  OnTiles() { _tile_loadconfig(&kTileConfig); }
  ~OnTiles() { _tile_release(); }

  // Computes result (+)= the sum over `steps` blocks of left x right.
  static void Multiply(Factor left, Factor right, int64_t steps, float* result, bool add) {
    // The load intrinsics do not tell the compiler that they read memory, so this statement makes
    // it complete all stores first.
    asm volatile("" ::: "memory");
    if (add) {
      _tile_loadd(0, result, 64);
      _tile_loadd(1, result + kTileFloats, 64);
      _tile_loadd(2, result + 2 * kTileFloats, 64);
      _tile_loadd(3, result + 3 * kTileFloats, 64);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (; steps > 0; --steps, left.blocks += left.step, right.blocks += right.step) {
      _tile_loadd(6, right.blocks, 64);
      _tile_loadd(4, left.blocks, 64);
      _tile_loadd(7, right.blocks + kBlockHalves / 2, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, left.blocks + kBlockHalves / 2, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, result, 64);
    _tile_stored(1, result + kTileFloats, 64);
    _tile_stored(2, result + 2 * kTileFloats, 64);
    _tile_stored(3, result + 3 * kTileFloats, 64);
  }
};

// The same products on vectors of AVX512-BF16.
class OnVectors {
 public:
  static void Multiply(Factor left, Factor right, int64_t steps, float* result, bool add) {
    for (int64_t row = 0; row < kBlock; row += kRows) {
      const int64_t tile = row / 16, row_of_tile = row % 16;
      MultiplyRows({left.blocks + tile * kBlockHalves / 2 + row_of_tile * kBlock, left.step}, right,
                   steps, result + tile * 2 * kTileFloats + row_of_tile * 16, add);
    }
  }

 private:
  // Two vectors for each of these rows fit into the registers, and kRows divides the 16 rows of a
  // tile.
  static constexpr int64_t kRows = 8;

  static inline __m512bh Pairs(__m512i bits) { return (__m512bh)bits; }

  static void MultiplyRows(Factor left, Factor right, int64_t steps, float* result, bool add) {
    __m512 low[kRows], high[kRows];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      low[r] = add ? _mm512_load_ps(result + r * 16) : _mm512_setzero_ps();
      high[r] = add ? _mm512_load_ps(result + kTileFloats + r * 16) : _mm512_setzero_ps();
    }
    for (; steps > 0; --steps, left.blocks += left.step, right.blocks += right.step) {
      for (int64_t pair = 0; pair < kBlock / 2; ++pair) {
        const Half* columns = right.blocks + pair * kBlock;
        const __m512bh b_low = Pairs(_mm512_load_si512(columns));
        const __m512bh b_high = Pairs(_mm512_load_si512(columns + kBlockHalves / 2));
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
          int32_t bits;
          std::memcpy(&bits, left.blocks + r * kBlock + 2 * pair, sizeof(bits));
          const __m512bh a = Pairs(_mm512_set1_epi32(bits));
          low[r] = _mm512_dpbf16_ps(low[r], a, b_low);
          high[r] = _mm512_dpbf16_ps(high[r], a, b_high);
        }
      }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      _mm512_store_ps(result + r * 16, low[r]);
      _mm512_store_ps(result + kTileFloats + r * 16, high[r]);
    }
  }
};

// One head's rows of a packed matrix, from a given position on.
struct Rows {
  Rows(const Matrix& matrix, int64_t first, int64_t limit, int64_t head, int64_t head_dim)
      : data(matrix.as<Half>() + first * matrix.stride + head * head_dim),
        stride(matrix.stride),
        count(limit),
        cols(head_dim) {}
  Rows From(int64_t row) const {
    Rows rest = *this;
    rest.data += row * stride;
    rest.count -= row;
    return rest;
  }
  Half* data;
  int64_t stride, count, cols;
};

inline uint32_t FirstBits(int64_t count) {
  return count >= 32 ? ~uint32_t{0} : count <= 0 ? 0 : (uint32_t{1} << count) - 1;
}

// Loads 32 elements; zeros outside of the matrix.
inline __m512i LoadHalves(const Rows& from, int64_t row, int64_t col) {
  if (row >= from.count) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(FirstBits(from.cols - col), from.data + row * from.stride + col);
}

// Transposes 16 x 16 elements of 32 bits.
inline void Transpose(__m512i rows[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xDD);
    const __m512i d = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xDD);
    pairs[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    pairs[i + 8] = _mm512_shuffle_i32x4(a, b, 0xDD);
    pairs[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    pairs[i + 12] = _mm512_shuffle_i32x4(c, d, 0xDD);
  }
  for (int i = 0; i < 16; ++i) rows[i] = pairs[i];
}

inline void StoreTile(const __m512i rows[16], Half* to) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kBlock, rows[i]);
}

// The form in which PackBlocks stores a block of 32 rows and 32 columns, as two tiles.
enum class Form {
  kRows,             // left factor [rows, cols]
  kTransposed,       // right factor [cols, rows]
  kPairs,            // right factor [rows, cols]
  kTransposedPairs,  // left factor [cols, rows]
};

// Packs 32 rows into E / 32 blocks, one after the other.
template <Form form>
void PackBlocks(const Rows& from, Half* to) {
  constexpr bool kOfPairs = form == Form::kPairs || form == Form::kTransposedPairs;
  const __m512i lanes = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high_lanes = _mm512_add_epi16(lanes, _mm512_set1_epi16(16));
  for (int64_t col = 0; col < from.cols; col += kBlock, to += kBlockHalves) {
    __m512i tiles[2][16];
    for (int64_t i = 0; i < 16; ++i) {
      if constexpr (kOfPairs) {
        const __m512i even = LoadHalves(from, 2 * i, col), odd = LoadHalves(from, 2 * i + 1, col);
        tiles[0][i] = _mm512_permutex2var_epi16(even, lanes, odd);
        tiles[1][i] = _mm512_permutex2var_epi16(even, high_lanes, odd);
      } else {
        tiles[0][i] = LoadHalves(from, i, col);
        tiles[1][i] = LoadHalves(from, 16 + i, col);
      }
    }
    for (int64_t half = 0; half < 2; ++half) {
      if constexpr (form == Form::kTransposed || form == Form::kTransposedPairs) {
        Transpose(tiles[half]);
      }
      StoreTile(tiles[half], to + half * kBlockHalves / 2);
    }
  }
}

template <Form form>
void PackAll(const Rows& from, Half* to) {
  for (int64_t row = 0; row < from.count; row += kBlock) {
    PackBlocks<form>(from.From(row), to);
    to += BlocksOf(from.cols) * kBlockHalves;
  }
}

// Returns the position, among 32 queries, of the query in column `col` of tile `half` of
// interleaved rows.
constexpr int64_t PositionOf(int64_t half, int64_t col) { return col / 4 * 8 + half * 4 + col % 4; }

// Puts two vectors of 16 queries in the order of PositionOf.
inline void Permute(__m512& first, __m512& second) {
  const __m512i lanes = _mm512_set_epi32(27, 26, 25, 24, 19, 18, 17, 16, 11, 10, 9, 8, 3, 2, 1, 0);
  const __m512i high_lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(4));
  const __m512 low = _mm512_permutex2var_ps(first, lanes, second);
  second = _mm512_permutex2var_ps(first, high_lanes, second);
  first = low;
}

inline __m512i Round(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Writes fp32 blocks [E / 32] of [D, queries] times `factors` to 32 rows. Blocks and factors are in
// the order of PositionOf.
inline void WriteTransposed(const float* blocks, const __m512 factors[2], const Rows& to) {
  for (int64_t col = 0; col < to.cols; col += kBlock, blocks += kBlockFloats) {
    for (int64_t half = 0; half < 2; ++half) {
      __m512i low[16], high[16];
      for (int64_t i = 0; i < 16; ++i) {
        const float* from = blocks + half * kTileFloats + i * 16;
        low[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(from), factors[half]));
        high[i] = _mm512_castps_si512(
            _mm512_mul_ps(_mm512_load_ps(from + 2 * kTileFloats), factors[half]));
      }
      Transpose(low);
      Transpose(high);
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = PositionOf(half, i);
        if (row >= to.count) continue;
        _mm512_mask_storeu_epi16(to.data + row * to.stride + col, FirstBits(to.cols - col),
                                 Round(_mm512_castsi512_ps(low[i]), _mm512_castsi512_ps(high[i])));
      }
    }
  }
}

// Writes fp32 blocks [S / 32, E / 32] of [rows, D], times `factor`.
inline void WriteAll(const float* blocks, float factor, const Rows& to) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (int64_t first = 0; first < to.count; first += kBlock) {
    for (int64_t col = 0; col < to.cols; col += kBlock, blocks += kBlockFloats) {
      for (int64_t i = 0; i < std::min(kBlock, to.count - first); ++i) {
        const float* from = blocks + i / 16 * 2 * kTileFloats + i % 16 * 16;
        const __m512 low = _mm512_mul_ps(_mm512_load_ps(from), factors);
        const __m512 high = _mm512_mul_ps(_mm512_load_ps(from + kTileFloats), factors);
        _mm512_mask_storeu_epi16(to.data + (first + i) * to.stride + col, FirstBits(to.cols - col),
                                 Round(low, high));
      }
    }
  }
}

}  // namespace megascale::ops::cpu::blocks
#pragma GCC pop_options
