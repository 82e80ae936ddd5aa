// Kernels of generation: products with few rows, whose cost is reading the weights, and attention
// over a cache. Every output row is computed in the same order whatever the other rows are.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/ops/cpu/generation.cc"
#include "runtime/base/vector_targets.h"
// Highway prescribes this order: the first include compiles this file once per instruction set.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/vectors-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

template <typename T>
HWY_INLINE T* RowAt(const Matrix& matrix, int64_t row) {
  return matrix.as<T>() + row * matrix.stride;
}

HWY_INLINE void StoreNumber(float value, float* to) { *to = value; }
HWY_INLINE void StoreNumber(float value, BFloat16* to) { *to = tensor::ToBFloat16(value); }
HWY_INLINE float LoadNumber(const float* from) { return *from; }
HWY_INLINE float LoadNumber(const BFloat16* from) { return tensor::ToFloat(*from); }

// Returns sum + a * b over the elements of two vectors, always in the same order.
HWY_INLINE Floats AddProducts(Two a, Two b, Floats sum) {
  return hn::MulAdd(a.b, b.b, hn::MulAdd(a.a, b.a, sum));
}

// Computes kRows x kCols elements of c: rows of a from `row` on, rows of b from `col` on. Fetches
// the rows of b that are next.
template <int kRows, int kCols, typename T, typename Result>
HWY_INLINE void FewRowsTile(const MatMulArgs& args, int64_t row, int64_t col) {
  const int64_t size = args.a.cols;
  const int64_t ahead = kCols * args.b.stride;
  const T* a[kRows];
  const T* b[kCols];
  Floats sums[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) a[r] = RowAt<const T>(args.a, row + r);
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) b[c] = RowAt<const T>(args.b, col + c);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) sums[r][c] = Zero();
  }
  const auto add = [&](int64_t k, auto lanes) HWY_ATTR {
    Two a_part[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) a_part[r] = LoadTwo(a[r] + k, lanes);
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
      hwy::Prefetch(b[c] + ahead + k);
      const Two b_part = LoadTwo(b[c] + k, lanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][c] = AddProducts(a_part[r], b_part, sums[r][c]);
    }
  };
  ForEachTwo(size, add);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) {
      float sum = Sum(sums[r][c]);
      if (args.bias) sum += LoadNumber(args.bias.as<T>() + col + c);
      StoreNumber(sum, RowAt<Result>(args.c, row + r) + col + c);
    }
  }
}

// Rows of a that one tile takes, where there are several, and rows of b then, and for one row of a.
constexpr int kTileRows = 2;
constexpr int kTileCols = 4;
constexpr int kWideCols = 8;

template <int kCols, typename T, typename Result>
HWY_INLINE void FewRowsColumns(const MatMulArgs& args, int64_t col) {
  int64_t row = 0;
  if constexpr (kCols <= kTileCols) {
    for (; row + kTileRows <= args.c.rows; row += kTileRows) {
      FewRowsTile<kTileRows, kCols, T, Result>(args, row, col);
    }
  }
  for (; row < args.c.rows; ++row) FewRowsTile<1, kCols, T, Result>(args, row, col);
}

template <typename T, typename Result>
void FewRowsOf(const MatMulArgs& args, Range cols) {
  int64_t col = cols.begin;
  if (args.c.rows == 1) {
    for (; col + kWideCols <= cols.end; col += kWideCols) {
      FewRowsColumns<kWideCols, T, Result>(args, col);
    }
  }
  for (; col + kTileCols <= cols.end; col += kTileCols) {
    FewRowsColumns<kTileCols, T, Result>(args, col);
  }
  for (; col < cols.end; ++col) FewRowsColumns<1, T, Result>(args, col);
}

void FewRowsEntry(const MatMulArgs& args, Range cols) {
  if (args.a.dtype == DType::kF32) return FewRowsOf<float, float>(args, cols);
  args.c.dtype == DType::kF32 ? FewRowsOf<BFloat16, float>(args, cols)
                              : FewRowsOf<BFloat16, BFloat16>(args, cols);
}

// The keys that one token sees, and its queries of one key/value head.
template <typename T>
struct CachedHead {
  CachedHead(const CachedAttentionArgs& args, int64_t index, float* scratch)
      : size(args.head_dim), group(args.heads / args.kv_heads) {
    const int64_t n = index / args.kv_heads, kv_head = index % args.kv_heads;
    const int64_t place = args.places.as<int32_t>()[n], position = place % args.capacity;
    seen = args.window > 0 ? std::min(args.window, position + 1) : position + 1;
    const int64_t kv_col = kv_head * size, col = kv_col * group;
    keys = RowAt<const T>(args.cached_k, place + 1 - seen) + kv_col;
    values = RowAt<const T>(args.cached_v, place + 1 - seen) + kv_col;
    key_stride = args.cached_k.stride, value_stride = args.cached_v.stride;
    query = RowAt<const T>(args.q, n) + col;
    out = RowAt<T>(args.out, n) + col;
    queries = scratch;
    weights = queries + group * size;
  }
  int64_t size, group;  // D; queries that share the head
  int64_t seen, key_stride, value_stride;
  const T* keys;    // [seen, D]
  const T* values;  // [seen, D]
  const T* query;   // [group, D]
  T* out;           // [group, D]
  float* queries;   // [group, D], scaled
  float* weights;   // [group, seen]
};

template <typename T>
HWY_INLINE void ScoreKeys(const CachedHead<T>& head) {
  const Floats scale = Splat(1 / std::sqrt(static_cast<double>(head.size)));
  ForEachVector(0, head.group * head.size, [&](int64_t i, auto lanes) HWY_ATTR {
    Store(hn::Mul(Load(head.query + i, lanes), scale), head.queries + i, lanes);
  });
  for (int64_t key = 0; key < head.seen; ++key) {
    const T* row = head.keys + key * head.key_stride;
    for (int64_t g = 0; g < head.group; ++g) {
      const float* query = head.queries + g * head.size;
      Floats sum = Zero();
      ForEachVector(0, head.size, [&](int64_t i, auto lanes) HWY_ATTR {
        sum = hn::MulAdd(Load(query + i, lanes), Load(row + i, lanes), sum);
      });
      head.weights[g * head.seen + key] = Sum(sum);
    }
  }
}

// Turns scores into weights whose sum is 1.
HWY_INLINE void Softmax(float* scores, int64_t count) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i) max = std::max(max, scores[i]);
  Floats sums = Zero();
  ForEachVector(0, count, [&](int64_t i, auto lanes) HWY_ATTR {
    Store(Exp(hn::Sub(Load(scores + i, lanes), Splat(max))), scores + i, lanes);
  });
  ForEachVector(0, count, [&](int64_t i, auto lanes) HWY_ATTR {
    sums = hn::Add(sums, Load(scores + i, lanes));
  });
  const Floats factor = Splat(1 / Sum(sums));
  ForEachVector(0, count, [&](int64_t i, auto lanes) HWY_ATTR {
    Store(hn::Mul(Load(scores + i, lanes), factor), scores + i, lanes);
  });
}

// Adds up `kVectors` vectors of the values, from element `begin` on.
template <int kVectors, typename T, typename Lanes>
HWY_INLINE void WeighValues(const CachedHead<T>& head, int64_t g, int64_t begin, Lanes lanes) {
  const float* weights = head.weights + g * head.seen;
  const T* row = head.values + begin;
  Floats sums[kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) sums[i] = Zero();
  for (int64_t key = 0; key < head.seen; ++key, row += head.value_stride) {
    const Floats weight = hn::Set(FloatTag(), weights[key]);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = hn::MulAdd(weight, Load(row + i * kLanes, lanes), sums[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    Store(sums[i], head.out + g * head.size + begin + i * kLanes, lanes);
  }
}

template <typename T>
void CachedAttentionOf(const CachedAttentionArgs& args, float* scratch, Range heads) {
  constexpr int kVectors = 4;
  for (int64_t index = heads.begin; index < heads.end; ++index) {
    const CachedHead<T> head(args, index, scratch);
    ScoreKeys(head);
    for (int64_t g = 0; g < head.group; ++g) {
      Softmax(head.weights + g * head.seen, head.seen);
      int64_t begin = 0;
      for (; begin + kVectors * kLanes <= head.size; begin += kVectors * kLanes) {
        WeighValues<kVectors>(head, g, begin, AllLanes());
      }
      ForEachVector(begin, head.size,
                    [&](int64_t i, auto lanes) HWY_ATTR { WeighValues<1>(head, g, i, lanes); });
    }
  }
}

void CachedAttentionEntry(const CachedAttentionArgs& args, float* scratch, Range heads) {
  args.q.dtype == DType::kF32 ? CachedAttentionOf<float>(args, scratch, heads)
                              : CachedAttentionOf<BFloat16>(args, scratch, heads);
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::ops::cpu {

HWY_EXPORT(FewRowsEntry);
HWY_EXPORT(CachedAttentionEntry);

void FewRows(const MatMulArgs& args, Range cols) { HWY_DYNAMIC_DISPATCH(FewRowsEntry)(args, cols); }

void FillCache(const CachedAttentionArgs& args) {
  const size_t element = tensor::SizeOf(args.k.dtype), bytes = args.k.cols * element;
  const auto row_of = [&](const Matrix& matrix, int64_t row) {
    return matrix.as<char>() + row * matrix.stride * static_cast<int64_t>(element);
  };
  for (int64_t n = 0; n < args.places.size; ++n) {
    const int64_t place = args.places.as<int32_t>()[n];
    std::memcpy(row_of(args.cached_k, place), row_of(args.k, n), bytes);
    std::memcpy(row_of(args.cached_v, place), row_of(args.v, n), bytes);
  }
}

int64_t CachedAttentionScratchSize(const CachedAttentionArgs& args) {
  return args.heads / args.kv_heads * (args.head_dim + args.capacity);
}

void CachedAttention(const CachedAttentionArgs& args, float* scratch, Range heads) {
  HWY_DYNAMIC_DISPATCH(CachedAttentionEntry)(args, scratch, heads);
}

}  // namespace megascale::ops::cpu
#endif
