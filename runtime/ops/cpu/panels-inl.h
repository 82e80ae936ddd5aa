// The products of attention in fp32, and copies of heads into the layouts that the products need.
// All products are
//   c[rows, cols] (+)= sum over steps of a(row, step) * b[step, cols]
// with 8 rows of c; a is read one scalar at a time, b in whole vectors. Compiled once per
// instruction set: include it after hwy/foreach_target.h. Legend: as in attention.cc.

#ifndef MEGASCALE_RUNTIME_OPS_CPU_PANEL_SIZES_
#define MEGASCALE_RUNTIME_OPS_CPU_PANEL_SIZES_
#include <cstdint>

namespace megascale::ops::cpu {

// Adjacent columns of b: two vectors of AVX-512.
constexpr int64_t kPanel = 32;
// Rows of c that one product computes.
constexpr int64_t kGroup = 8;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t RoundDown(int64_t value, int64_t multiple) { return value / multiple * multiple; }

}  // namespace megascale::ops::cpu
#endif

#if defined(MEGASCALE_RUNTIME_OPS_CPU_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASCALE_RUNTIME_OPS_CPU_PANELS_INL_H_
#undef MEGASCALE_RUNTIME_OPS_CPU_PANELS_INL_H_
#else
#define MEGASCALE_RUNTIME_OPS_CPU_PANELS_INL_H_
#endif

#include <algorithm>

#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

// Rows whose sums fit into the registers: 32 registers with AVX-512, otherwise 16.
constexpr int64_t kTileRows = kLanes >= 16 ? 8 : 4;

// a(row, step) = data[row * row_stride + step * step_stride].
struct Scalars {
  const float* data;
  int64_t row_stride;
  int64_t step_stride;
};
struct Steps {
  const float* b;  // [count, cols]
  int64_t stride;
  int64_t count;
};
struct Result {
  float* c;  // [kGroup, cols]
  int64_t stride;
  int64_t cols;  // a multiple of kPanel
  bool accumulate;
};

// Computes kTileRows rows and two vectors of a product.
HWY_INLINE void MultiplyTile(const Scalars& a, const Steps& steps, float* c, int64_t stride,
                             bool accumulate) {
  const FloatTag tag;
  Floats low[kTileRows], high[kTileRows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kTileRows; ++r) {
    low[r] = accumulate ? hn::LoadU(tag, c + r * stride) : Zero();
    high[r] = accumulate ? hn::LoadU(tag, c + r * stride + kLanes) : Zero();
  }
  const float* scalar = a.data;
  const float* b = steps.b;
  for (int64_t k = 0; k < steps.count; ++k, scalar += a.step_stride, b += steps.stride) {
    const Floats b_low = hn::LoadU(tag, b), b_high = hn::LoadU(tag, b + kLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kTileRows; ++r) {
      const Floats factor = hn::Set(tag, scalar[r * a.row_stride]);
      low[r] = hn::MulAdd(factor, b_low, low[r]);
      high[r] = hn::MulAdd(factor, b_high, high[r]);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < kTileRows; ++r) {
    hn::StoreU(low[r], tag, c + r * stride);
    hn::StoreU(high[r], tag, c + r * stride + kLanes);
  }
}

// Computes kGroup rows of a product.
HWY_INLINE void MultiplyGroup(const Scalars& a, const Steps& steps, const Result& result) {
  for (int64_t r = 0; r < kGroup; r += kTileRows) {
    const Scalars rows{a.data + r * a.row_stride, a.row_stride, a.step_stride};
    for (int64_t col = 0; col < result.cols; col += 2 * kLanes) {
      MultiplyTile(rows, {steps.b + col, steps.stride, steps.count},
                   result.c + r * result.stride + col, result.stride, result.accumulate);
    }
  }
}

// One head's columns of a packed matrix, beginning at the row of position 0.
template <typename T>
struct Head {
  Head(const Matrix& matrix, int64_t first_row, int64_t head, int64_t head_dim)
      : data(matrix.as<T>() + first_row * matrix.stride + head * head_dim), stride(matrix.stride) {}
  HWY_INLINE T* row(int64_t position) const { return data + position * stride; }
  T* data;
  int64_t stride;
};

// Copies `rows`, times `scale`, to `to` [padded, width]; fills the rest with zeros.
template <typename T>
void CopyRows(const Head<T>& from, Range rows, int64_t head_dim, float scale, float* to,
              int64_t padded, int64_t width) {
  const Floats scales = Splat(scale);
  for (int64_t r = 0; r < padded; ++r) {
    float* out = to + r * width;
    const int64_t copied = r < rows.size() ? head_dim : 0;
    if (copied < width) std::fill(out + copied, out + width, 0.0f);
    if (copied == 0) continue;
    const T* in = from.row(rows.begin + r);
    ForEachVector(0, head_dim, [&](int64_t d, auto lanes) HWY_ATTR {
      Store(hn::Mul(Load(in + d, lanes), scales), out + d, lanes);
    });
  }
}

#if HWY_TARGET == HWY_SCALAR
constexpr int64_t kBlock = 1;
template <typename T>
HWY_INLINE void TransposeBlock(const T* from, int64_t, float* panel) {
  *panel = hn::GetLane(Load(from, AllLanes()));
}
#else
constexpr int64_t kBlock = 4;
// Writes four elements of each of four rows, `stride` apart, as four rows of a panel.
template <typename T>
HWY_INLINE void TransposeBlock(const T* from, int64_t stride, float* panel) {
  const hn::CappedTag<float, 4> tag;
  const hn::Repartition<double, decltype(tag)> pair_tag;
  const auto row0 = LoadAs(tag, from), row1 = LoadAs(tag, from + stride);
  const auto row2 = LoadAs(tag, from + 2 * stride), row3 = LoadAs(tag, from + 3 * stride);
  const auto low01 = hn::BitCast(pair_tag, hn::InterleaveLower(tag, row0, row1));
  const auto low23 = hn::BitCast(pair_tag, hn::InterleaveLower(tag, row2, row3));
  const auto high01 = hn::BitCast(pair_tag, hn::InterleaveUpper(tag, row0, row1));
  const auto high23 = hn::BitCast(pair_tag, hn::InterleaveUpper(tag, row2, row3));
  const auto store = [&](auto pairs, int64_t row) HWY_ATTR {
    hn::StoreU(hn::BitCast(tag, pairs), tag, panel + row * kPanel);
  };
  store(hn::InterleaveLower(pair_tag, low01, low23), 0);
  store(hn::InterleaveUpper(pair_tag, low01, low23), 1);
  store(hn::InterleaveLower(pair_tag, high01, high23), 2);
  store(hn::InterleaveUpper(pair_tag, high01, high23), 3);
}
#endif

// Copies all rows to `panels` [S / P, D, P]; fills with zeros after the end of the sequence.
template <typename T>
void CopyPanels(const Head<T>& from, int64_t seq, int64_t head_dim, float* panels) {
  for (int64_t first = 0; first < seq; first += kPanel, panels += kPanel * head_dim) {
    const int64_t count = std::min(kPanel, seq - first);
    if (count < kPanel) std::fill(panels, panels + kPanel * head_dim, 0.0f);
    const auto copy = [&](int64_t key, int64_t d) HWY_ATTR {
      const Floats value = Load(from.row(first + key) + d, FirstLanes{1});
      panels[d * kPanel + key] = hn::GetLane(value);
    };
    const int64_t whole_keys = RoundDown(count, kBlock), whole_d = RoundDown(head_dim, kBlock);
    for (int64_t key = 0; key < whole_keys; key += kBlock) {
      for (int64_t d = 0; d < whole_d; d += kBlock) {
        TransposeBlock(from.row(first + key) + d, from.stride, panels + d * kPanel + key);
      }
    }
    for (int64_t key = 0; key < count; ++key) {
      for (int64_t d = key < whole_keys ? whole_d : 0; d < head_dim; ++d) copy(key, d);
    }
  }
}

template <typename T>
void WriteRows(const float* from, int64_t width, float scale, const Head<T>& to, Range rows,
               int64_t head_dim) {
  const Floats scales = Splat(scale);
  for (int64_t r = 0; r < rows.size(); ++r) {
    T* out = to.row(rows.begin + r);
    ForEachVector(0, head_dim, [&](int64_t d, auto lanes) HWY_ATTR {
      Store(hn::Mul(Load(from + r * width + d, lanes), scales), out + d, lanes);
    });
  }
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
