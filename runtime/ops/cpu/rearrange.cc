// Rearranges bf16 matrices for products: transposes them in blocks of 8 x 8 within registers, or
// packs pairs of rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/ops/cpu/rearrange.cc"
#include "runtime/base/vector_targets.h"
// Highway prescribes this order: the first include compiles this file once per instruction set.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "runtime/ops/cpu/kernels.h"
// clang-format on
#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlock = 8;
// Rows and columns of a tile: one cache line each, so that lines are read and written whole while
// they are in the first-level cache.
constexpr int64_t kTile = 32;

// to[j][i] = from[i][j] for 8 x 8 elements.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void TransposeBlock(const uint16_t* from, int64_t from_stride, uint16_t* to,
                               int64_t to_stride) {
  for (int64_t i = 0; i < kBlock; ++i) {
    for (int64_t j = 0; j < kBlock; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}
#else
using HalfTag = hn::FixedTag<uint16_t, kBlock>;
using Halves = hn::Vec<HalfTag>;

HWY_INLINE void TransposeBlock(const uint16_t* from, int64_t from_stride, uint16_t* to,
                               int64_t to_stride) {
  const HalfTag tag;
  const hn::RepartitionToWide<HalfTag> word_tag;
  const hn::RepartitionToWide<decltype(word_tag)> quad_tag;
  Halves rows[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) rows[i] = hn::LoadU(tag, from + i * from_stride);
  hn::Vec<decltype(word_tag)> words[kBlock];
  for (int64_t i = 0; i < kBlock; i += 2) {
    words[i] = hn::BitCast(word_tag, hn::InterleaveLower(tag, rows[i], rows[i + 1]));
    words[i + 1] = hn::BitCast(word_tag, hn::InterleaveUpper(tag, rows[i], rows[i + 1]));
  }
  // words[i + h]: columns 4h … 4h + 3 of rows i, i + 1.
  for (int64_t half = 0; half < 2; ++half) {
    const auto& low0 = words[half];
    const auto& low1 = words[2 + half];
    const auto& high0 = words[4 + half];
    const auto& high1 = words[6 + half];
    const auto first = hn::BitCast(quad_tag, hn::InterleaveLower(word_tag, low0, low1));
    const auto second = hn::BitCast(quad_tag, hn::InterleaveUpper(word_tag, low0, low1));
    const auto third = hn::BitCast(quad_tag, hn::InterleaveLower(word_tag, high0, high1));
    const auto fourth = hn::BitCast(quad_tag, hn::InterleaveUpper(word_tag, high0, high1));
    uint16_t* out = to + 4 * half * to_stride;
    const auto store = [&](int64_t row, auto value) HWY_ATTR {
      hn::StoreU(hn::BitCast(tag, value), tag, out + row * to_stride);
    };
    store(0, hn::InterleaveLower(quad_tag, first, third));
    store(1, hn::InterleaveUpper(quad_tag, first, third));
    store(2, hn::InterleaveLower(quad_tag, second, fourth));
    store(3, hn::InterleaveUpper(quad_tag, second, fourth));
  }
}
#endif

HWY_INLINE void CopyLine(const uint16_t* from, uint16_t* to) {
  const hn::CappedTag<uint16_t, kTile> tag;
  for (int64_t i = 0; i < kTile; i += static_cast<int64_t>(hn::Lanes(tag))) {
    hn::StoreU(hn::LoadU(tag, from + i), tag, to + i);
  }
}

// The processor does not prefetch lines that are this far apart.
HWY_INLINE void PrefetchTile(const uint16_t* from, int64_t stride) {
  for (int64_t i = 0; i < kTile; ++i) hwy::Prefetch(from + i * stride);
}

// Transposes a full tile through two small copies, because rows whose distance is a multiple of 2
// KiB share few sets of the first-level cache: each line is then touched once.
HWY_INLINE void TransposeTile(const uint16_t* from, int64_t from_stride, uint16_t* to,
                              int64_t to_stride) {
  alignas(64) uint16_t in[kTile * kTile];
  alignas(64) uint16_t out[kTile * kTile];
  for (int64_t i = 0; i < kTile; ++i) CopyLine(from + i * from_stride, in + i * kTile);
  for (int64_t j = 0; j < kTile; j += kBlock) {
    for (int64_t i = 0; i < kTile; i += kBlock) {
      TransposeBlock(in + i * kTile + j, kTile, out + j * kTile + i, kTile);
    }
  }
  for (int64_t j = 0; j < kTile; ++j) CopyLine(out + j * kTile, to + j * to_stride);
}

void TransposeHalves(const Matrix& from, const Matrix& to, Range cols) {
  const auto* in = from.as<uint16_t>();
  auto* out = to.as<uint16_t>();
  // Goes along rows of tiles, so that reads are contiguous; the written lines stay in the
  // second-level cache.
  for (int64_t i = 0; i < from.rows; i += kTile) {
    const int64_t i_end = std::min(from.rows, i + kTile);
    for (int64_t j = cols.begin; j < cols.end; j += kTile) {
      const int64_t j_end = std::min(cols.end, j + kTile);
      if (i_end - i == kTile && j_end - j == kTile) {
        if (i_end < from.rows) PrefetchTile(in + i_end * from.stride + j, from.stride);
        TransposeTile(in + i * from.stride + j, from.stride, out + j * to.stride + i, to.stride);
        continue;
      }
      for (int64_t c = j; c < j_end; ++c) {
        for (int64_t r = i; r < i_end; ++r) out[c * to.stride + r] = in[r * from.stride + c];
      }
    }
  }
}

// Columns.
constexpr int64_t kPackAhead = 256;

// Interleaves rows 2p and 2p + 1 of `from`, `count` columns; rows and columns outside of it read as
// 0.
HWY_INLINE void PackPair(const Matrix& from, int64_t pair, Range cols, uint16_t* to,
                         int64_t block_cols) {
  const hn::ScalableTag<uint32_t> tag;
  const hn::Rebind<uint16_t, decltype(tag)> half_tag;
  constexpr int64_t kStep = HWY_LANES(uint32_t);
  const uint16_t* even = from.as<uint16_t>() + 2 * pair * from.stride + cols.begin;
  const uint16_t* odd = even + from.stride;
  const bool has_odd = 2 * pair + 1 < from.rows;
  int64_t c = 0;
  if (has_odd) {
    for (; c + kStep <= cols.size(); c += kStep) {
      if (c % 32 == 0) {
        hwy::Prefetch(even + c + kPackAhead);
        hwy::Prefetch(odd + c + kPackAhead);
      }
      const auto low = hn::PromoteTo(tag, hn::LoadU(half_tag, even + c));
      const auto high = hn::PromoteTo(tag, hn::LoadU(half_tag, odd + c));
      hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), tag, reinterpret_cast<uint32_t*>(to) + c);
    }
  }
  for (; c < block_cols; ++c) {
    const bool inside = c < cols.size();
    to[2 * c] = inside ? even[c] : 0;
    to[2 * c + 1] = inside && has_odd ? odd[c] : 0;
  }
}

void PackHalves(const Matrix& from, const PairBlocks& to, Range row_blocks) {
  const int64_t pairs = (from.rows + 1) / 2;
  const int64_t col_blocks = (from.cols + to.block_cols - 1) / to.block_cols;
  for (int64_t i = row_blocks.begin; i < row_blocks.end; ++i) {
    for (int64_t j = 0; j < col_blocks; ++j) {
      uint16_t* block = to.data + i * to.row_block_stride + j * to.col_block_stride;
      const Range cols{j * to.block_cols, std::min(from.cols, (j + 1) * to.block_cols)};
      for (int64_t p = 0; p < to.block_pairs; ++p) {
        uint16_t* out = block + p * to.block_cols * 2;
        const int64_t pair = i * to.block_pairs + p;
        if (pair < pairs) {
          PackPair(from, pair, cols, out, to.block_cols);
        } else {
          std::fill_n(out, to.block_cols * 2, uint16_t{0});
        }
      }
    }
  }
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::ops::cpu {

HWY_EXPORT(TransposeHalves);
HWY_EXPORT(PackHalves);

void Transpose(const Matrix& from, const Matrix& to, Range cols) {
  HWY_DYNAMIC_DISPATCH(TransposeHalves)(from, to, cols);
}
void Pack(const Matrix& from, const PairBlocks& to, Range row_blocks) {
  HWY_DYNAMIC_DISPATCH(PackHalves)(from, to, row_blocks);
}

}  // namespace megascale::ops::cpu
#endif
