// Transposition of bf16 matrices in blocks of 8 x 8 within registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/ops/cpu_transpose.cc"
#include "runtime/ops/cpu_targets.h"
// The order of these is Highway's: the first compiles this file once per instruction set.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/ops/cpu_kernels.h"
// clang-format on
#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlock = 8;
// Rows and columns of a tile: what is read and written stays in the first cache.
constexpr int64_t kTile = 64;

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

void TransposeHalves(const Matrix& from, const Matrix& to, Range cols) {
  const auto* in = from.as<uint16_t>();
  auto* out = to.as<uint16_t>();
  const auto tile = [&](int64_t row, int64_t col, int64_t row_end, int64_t col_end) HWY_ATTR {
    int64_t j = col;
    for (; j + kBlock <= col_end; j += kBlock) {
      int64_t i = row;
      for (; i + kBlock <= row_end; i += kBlock) {
        TransposeBlock(in + i * from.stride + j, from.stride, out + j * to.stride + i, to.stride);
      }
      for (; i < row_end; ++i) {
        for (int64_t c = j; c < j + kBlock; ++c) out[c * to.stride + i] = in[i * from.stride + c];
      }
    }
    for (; j < col_end; ++j) {
      for (int64_t i = row; i < row_end; ++i) out[j * to.stride + i] = in[i * from.stride + j];
    }
  };
  for (int64_t j = cols.begin; j < cols.end; j += kTile) {
    for (int64_t i = 0; i < from.rows; i += kTile) {
      tile(i, j, std::min(from.rows, i + kTile), std::min(cols.end, j + kTile));
    }
  }
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::ops::cpu {

HWY_EXPORT(TransposeHalves);

void Transpose(const Matrix& from, const Matrix& to, Range cols) {
  HWY_DYNAMIC_DISPATCH(TransposeHalves)(from, to, cols);
}

}  // namespace megascale::ops::cpu
#endif
