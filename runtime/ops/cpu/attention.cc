// Causal attention in the manner of FlashAttention: scores live in tiles that fit the cache,
// softmax is computed in passing, and backward recomputes the scores with the log-sum-exp that
// forward kept. Source: Dao, 2023, FlashAttention-2, algorithms 1 and 2.
//
// Threads share the work by (batch, key/value head) pairs. For each pair, keys and values are
// copied once into fp32 scratch, in the layout that the products of panels-inl.h need. Legend: P
// keys in a panel (32), S padded sequence, D head size, E padded head size.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/ops/cpu/attention.cc"
#include "runtime/base/vector_targets.h"
// Highway prescribes this order: the first include compiles this file once per instruction set.
// clang-format off
#include "hwy/foreach_target.h"
#include "runtime/ops/cpu/attention_blocks.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/matmul.h"
#include "runtime/ops/cpu/panels-inl.h"
#include "runtime/ops/cpu/vectors-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <limits>

#ifndef MEGASCALE_RUNTIME_OPS_CPU_ATTENTION_SIZES_
#define MEGASCALE_RUNTIME_OPS_CPU_ATTENTION_SIZES_
namespace megascale::ops::cpu {

// Scores of kQueryBlock x kKeyChunk fit the first-level cache, with the panel they are computed
// from.
constexpr int64_t kQueryBlock = 32;
constexpr int64_t kKeyChunk = 128;

// The memory of one (batch, key/value head) pair in forward, laid out in the caller's scratch.
struct ForwardScratch {
  ForwardScratch(const AttentionArgs& args, float* begin)
      : seq(RoundUp(args.seq, kPanel)), width(RoundUp(args.head_dim, kPanel)) {
    keys = begin;
    values = keys + seq * args.head_dim;
    query = values + seq * width;
    out = query + kQueryBlock * width;
    scores = out + kQueryBlock * width;
  }
  static int64_t Size(const AttentionArgs& args) {
    const int64_t width = RoundUp(args.head_dim, kPanel);
    return RoundUp(args.seq, kPanel) * (args.head_dim + width) +
           kQueryBlock * (2 * width + kKeyChunk);
  }
  int64_t seq, width;
  float* keys;    // [S / P, D, P]
  float* values;  // [S, E]
  float* query;   // [kQueryBlock, E], scaled
  float* out;     // [kQueryBlock, E]
  float* scores;  // [kQueryBlock, kKeyChunk]
};

struct BackwardScratch {
  BackwardScratch(const AttentionArgs& args, float* begin)
      : seq(RoundUp(args.seq, kPanel)), width(RoundUp(args.head_dim, kPanel)) {
    key_panels = begin;
    value_panels = key_panels + seq * args.head_dim;
    keys = value_panels + seq * args.head_dim;
    d_keys = keys + seq * width;
    d_values = d_keys + seq * width;
    query = d_values + seq * width;
    d_out = query + kQueryBlock * width;
    d_query = d_out + kQueryBlock * width;
    delta = d_query + kQueryBlock * width;
    weights = delta + kQueryBlock;
    d_scores = weights + kQueryBlock * kKeyChunk;
  }
  static int64_t Size(const AttentionArgs& args) {
    const int64_t width = RoundUp(args.head_dim, kPanel);
    return RoundUp(args.seq, kPanel) * (2 * args.head_dim + 3 * width) +
           kQueryBlock * (3 * width + 1 + 2 * kKeyChunk);
  }
  int64_t seq, width;
  float* key_panels;    // [S / P, D, P]
  float* value_panels;  // [S / P, D, P]
  float* keys;          // [S, E]
  float* d_keys;        // [S, E]
  float* d_values;      // [S, E]
  float* query;         // [kQueryBlock, E], scaled
  float* d_out;         // [kQueryBlock, E]
  float* d_query;       // [kQueryBlock, E]
  float* delta;         // [kQueryBlock]: d_out . out
  float* weights;       // [kQueryBlock, kKeyChunk]: softmax
  float* d_scores;      // [kQueryBlock, kKeyChunk]
};

}  // namespace megascale::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

// Returns the columns of the vector at `col` that lie in `seen`. It has no branches: the bounds
// change from row to row, and mispredictions would cost more than branches save.
HWY_INLINE auto Inside(Range seen, int64_t col) {
  const IntTag tag;
  const auto lane = hn::Iota(tag, 0);
  const auto begin = hn::Set(tag, static_cast<int32_t>(seen.begin - col));
  const auto last = hn::Set(tag, static_cast<int32_t>(seen.end - 1 - col));
  return hn::RebindMask(FloatTag(), hn::Not(hn::Or(hn::Lt(lane, begin), hn::Gt(lane, last))));
}

// Returns the keys that `position` sees, counted from `first` and cut to [0, cols).
HWY_INLINE Range SeenKeys(const AttentionArgs& args, int64_t position, int64_t first,
                          int64_t cols) {
  return {std::max<int64_t>(0, FirstKey(args, position) - first),
          std::min(cols, position + 1 - first)};
}

// Running softmax of one query row over the chunks of its keys.
struct SoftmaxRow {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  float shrink = 1;  // factor on the earlier sum, for the last chunk's maximum
};

// Raises the maximum to that of the chunk's scores in `seen`.
HWY_INLINE void RaiseMax(const float* scores, int64_t cols, Range seen, SoftmaxRow& row) {
  const Floats lowest = Splat(-std::numeric_limits<float>::infinity());
  Floats greatest = lowest;
  for (int64_t col = 0; col < cols; col += kLanes) {
    const Floats score = hn::LoadU(FloatTag(), scores + col);
    greatest = hn::Max(greatest, hn::IfThenElse(Inside(seen, col), score, lowest));
  }
  // A row may see no key of the chunk; any finite maximum is then correct.
  const float max = std::max({row.max, Max(greatest), std::numeric_limits<float>::lowest()});
  row.shrink = row.sum > 0 ? hn::GetLane(Exp(Splat(row.max - max))) : 1;
  row.max = max;
}

// Replaces `scores` [cols] by exp(score - max) in `seen` and 0 elsewhere, and adds them to the sum.
HWY_INLINE void AddWeights(float* scores, int64_t cols, Range seen, SoftmaxRow& row) {
  const FloatTag tag;
  const Floats maxima = Splat(row.max);
  Floats sums = Zero();
  for (int64_t col = 0; col < cols; col += kLanes) {
    const Floats power = Exp(hn::Sub(hn::LoadU(tag, scores + col), maxima));
    const Floats weight = hn::IfThenElseZero(Inside(seen, col), power);
    sums = hn::Add(sums, weight);
    hn::StoreU(weight, tag, scores + col);
  }
  row.sum = row.sum * row.shrink + Sum(sums);
}

HWY_INLINE void ScaleRow(float* row, int64_t width, float factor) {
  const Floats factors = Splat(factor);
  for (int64_t d = 0; d < width; d += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(FloatTag(), row + d), factors), FloatTag(), row + d);
  }
}

// Computes the softmax of the scores of a block of queries and one chunk of keys. Each pass goes
// over all rows, so that the processor overlaps the rows' chains of dependent operations.
template <typename KeysOf>
HWY_INLINE void WeighChunk(const AttentionArgs& args, const ForwardScratch& scratch,
                           Range positions, int64_t begin, KeysOf keys_of, SoftmaxRow* rows) {
  const auto for_each_row = [&](auto body) HWY_ATTR {
    for (int64_t r = 0; r < positions.size(); ++r) {
      const int64_t keys = keys_of(RoundDown(r, kGroup));
      if (keys <= 0) continue;
      const int64_t cols = RoundUp(keys, kPanel);
      body(r, cols, SeenKeys(args, positions.begin + r, begin, cols));
    }
  };
  for_each_row([&](int64_t r, int64_t cols, Range seen)
                   HWY_ATTR { RaiseMax(scratch.scores + r * kKeyChunk, cols, seen, rows[r]); });
  for_each_row([&](int64_t r, int64_t cols, Range seen) HWY_ATTR {
    AddWeights(scratch.scores + r * kKeyChunk, cols, seen, rows[r]);
    if (rows[r].shrink < 1)
      ScaleRow(scratch.out + r * scratch.width, scratch.width, rows[r].shrink);
  });
}

// Attends a block of queries to the keys [begin, begin + kKeyChunk); adds to scratch.out.
HWY_INLINE void AttendChunk(const AttentionArgs& args, const ForwardScratch& scratch,
                            Range positions, int64_t begin, bool accumulate, SoftmaxRow* rows) {
  const int64_t width = scratch.width;
  // Rows see no key after their own position: each group stops at that of its last row.
  const auto keys_of = [&](int64_t r) {
    return std::min({begin + kKeyChunk, positions.begin + r + kGroup, positions.end}) - begin;
  };
  for (int64_t col = 0; col < keys_of(positions.size() - 1); col += kPanel) {
    for (int64_t r = 0; r < positions.size(); r += kGroup) {
      if (col >= keys_of(r)) continue;
      MultiplyGroup({scratch.query + r * width, width, 1},
                    {scratch.keys + (begin + col) * args.head_dim, kPanel, args.head_dim},
                    {scratch.scores + r * kKeyChunk + col, kKeyChunk, kPanel, false});
    }
  }
  WeighChunk(args, scratch, positions, begin, keys_of, rows);
  for (int64_t col = 0; col < width; col += kPanel) {
    for (int64_t r = 0; r < positions.size(); r += kGroup) {
      if (keys_of(r) <= 0) continue;
      MultiplyGroup({scratch.scores + r * kKeyChunk, kKeyChunk, 1},
                    {scratch.values + begin * width + col, width, keys_of(r)},
                    {scratch.out + r * width + col, width, kPanel, accumulate});
    }
  }
}

template <typename T>
void ForwardHead(const AttentionArgs& args, const ForwardScratch& scratch, int64_t batch,
                 int64_t head) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.head_dim));
  const int64_t width = scratch.width;
  const Head<T> query(args.q, batch * args.seq, head, args.head_dim);
  const Head<T> out(args.out, batch * args.seq, head, args.head_dim);
  float* log_sum_exp = args.log_sum_exp.as<float>() + (batch * args.heads + head) * args.seq;
  for (int64_t first = 0; first < args.seq; first += kQueryBlock) {
    const Range positions{first, std::min(first + kQueryBlock, args.seq)};
    SoftmaxRow rows[kQueryBlock];
    CopyRows(query, positions, args.head_dim, scale, scratch.query, kQueryBlock, width);
    const int64_t first_key = RoundDown(FirstKey(args, first), kPanel);
    for (int64_t begin = first_key; begin < positions.end; begin += kKeyChunk) {
      AttendChunk(args, scratch, positions, begin, begin != first_key, rows);
    }
    for (int64_t t = positions.begin; t < positions.end; ++t) {
      const SoftmaxRow& row = rows[t - first];
      log_sum_exp[t] = row.max + std::log(row.sum);
      WriteRows(scratch.out + (t - first) * width, width, 1 / row.sum, out, {t, t + 1},
                args.head_dim);
    }
  }
}

template <typename T>
void AttentionOf(const AttentionArgs& args, float* memory, Range groups) {
  const ForwardScratch scratch(args, memory);
  const int64_t heads_per_group = args.heads / args.kv_heads;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t b = g / args.kv_heads, kv_head = g % args.kv_heads;
    const AttentionArgs of_sequence = WithDocumentsOf(args, b);
    const Head<T> keys(args.k, b * args.seq, kv_head, args.head_dim);
    const Head<T> values(args.v, b * args.seq, kv_head, args.head_dim);
    CopyPanels(keys, args.seq, args.head_dim, scratch.keys);
    CopyRows(values, {0, args.seq}, args.head_dim, 1, scratch.values, scratch.seq, scratch.width);
    for (int64_t i = 0; i < heads_per_group; ++i) {
      ForwardHead<T>(of_sequence, scratch, b, kv_head * heads_per_group + i);
    }
  }
}

// The positions of a block of queries, and the statistics that forward kept for it.
struct QueryBlock {
  Range positions;
  const float* log_sum_exp;  // by position
};

// Computes `weights` and `d_scores` for kGroup rows and `cols` keys from `first_key` on. Requires:
// the scores, and the products of d_out with the values, are in place.
HWY_INLINE void WeighGroup(const AttentionArgs& args, const BackwardScratch& scratch,
                           const QueryBlock& block, int64_t first_row, Range keys) {
  const FloatTag tag;
  for (int64_t r = first_row; r < first_row + kGroup; ++r) {
    float* weights = scratch.weights + r * kKeyChunk;
    float* d_scores = scratch.d_scores + r * kKeyChunk;
    const int64_t position = block.positions.begin + r;
    Range seen = {0, 0};
    if (position < block.positions.end) seen = SeenKeys(args, position, keys.begin, keys.size());
    const Floats delta = Splat(scratch.delta[r]);
    const Floats log_sum_exp = Splat(seen.size() > 0 ? block.log_sum_exp[position] : 0);
    for (int64_t col = 0; col < keys.size(); col += kLanes) {
      const Floats power = Exp(hn::Sub(hn::LoadU(tag, weights + col), log_sum_exp));
      const Floats weight = hn::IfThenElseZero(Inside(seen, col), power);
      const Floats d_weight = hn::LoadU(tag, d_scores + col);
      hn::StoreU(weight, tag, weights + col);
      hn::StoreU(hn::Mul(weight, hn::Sub(d_weight, delta)), tag, d_scores + col);
    }
  }
}

// Adds the contributions of one block of queries and at most kKeyChunk keys from `chunk.begin` on.
HWY_INLINE void BackwardChunk(const AttentionArgs& args, const BackwardScratch& scratch,
                              const QueryBlock& block, Range chunk) {
  const int64_t head_dim = args.head_dim, width = scratch.width;
  for (int64_t r = 0; r < block.positions.size(); r += kGroup) {
    const int64_t position = block.positions.begin + r;
    // The panels that some row of the group sees; others are neither computed nor read.
    const int64_t begin = std::max(chunk.begin, RoundDown(FirstKey(args, position), kPanel));
    const int64_t end = std::min({chunk.end, position + kGroup, args.seq});
    if (begin >= end) continue;
    const int64_t offset = r * kKeyChunk + begin - chunk.begin;
    const int64_t cols = RoundUp(end - begin, kPanel);
    for (int64_t col = 0; col < cols; col += kPanel) {
      const int64_t panel = (begin + col) * head_dim;
      MultiplyGroup({scratch.query + r * width, width, 1},
                    {scratch.key_panels + panel, kPanel, head_dim},
                    {scratch.weights + offset + col, kKeyChunk, kPanel, false});
      MultiplyGroup({scratch.d_out + r * width, width, 1},
                    {scratch.value_panels + panel, kPanel, head_dim},
                    {scratch.d_scores + offset + col, kKeyChunk, kPanel, false});
    }
    BackwardScratch shifted = scratch;
    shifted.weights += begin - chunk.begin;
    shifted.d_scores += begin - chunk.begin;
    WeighGroup(args, shifted, block, r, {begin, begin + cols});
    MultiplyGroup({scratch.d_scores + offset, kKeyChunk, 1},
                  {scratch.keys + begin * width, width, end - begin},
                  {scratch.d_query + r * width, width, width, true});
  }
  for (int64_t key = chunk.begin; key < chunk.end; key += kGroup) {
    // The queries of the block that see some key of the group.
    const int64_t begin = std::max<int64_t>(0, key - block.positions.begin);
    int64_t end = block.positions.size();
    if (args.window > 0) {
      end = std::min(end, key + kGroup + args.window - 1 - block.positions.begin);
    }
    if (args.document_begins) {
      while (end > begin && FirstKey(args, block.positions.begin + end - 1) >= key + kGroup) --end;
    }
    if (begin >= end) continue;
    const int64_t offset = begin * kKeyChunk + key - chunk.begin;
    MultiplyGroup({scratch.weights + offset, 1, kKeyChunk},
                  {scratch.d_out + begin * width, width, end - begin},
                  {scratch.d_values + key * width, width, width, true});
    MultiplyGroup({scratch.d_scores + offset, 1, kKeyChunk},
                  {scratch.query + begin * width, width, end - begin},
                  {scratch.d_keys + key * width, width, width, true});
  }
}

template <typename T>
void BackwardHead(const AttentionBackwardArgs& args, const BackwardScratch& scratch, int64_t batch,
                  int64_t head) {
  const AttentionArgs& forward = args.forward;
  const int64_t head_dim = forward.head_dim, width = scratch.width;
  const int64_t first_row = batch * forward.seq;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const Head<T> query(forward.q, first_row, head, head_dim);
  const Head<T> out(forward.out, first_row, head, head_dim);
  const Head<T> d_out(args.d_out, first_row, head, head_dim);
  const Head<T> d_query(args.d_q, first_row, head, head_dim);
  const float* log_sum_exp =
      forward.log_sum_exp.as<float>() + (batch * forward.heads + head) * forward.seq;
  for (int64_t first = 0; first < forward.seq; first += kQueryBlock) {
    const Range positions{first, std::min(first + kQueryBlock, forward.seq)};
    CopyRows(query, positions, head_dim, scale, scratch.query, kQueryBlock, width);
    CopyRows(d_out, positions, head_dim, 1, scratch.d_out, kQueryBlock, width);
    std::fill(scratch.d_query, scratch.d_query + kQueryBlock * width, 0.0f);
    for (int64_t r = 0; r < positions.size(); ++r) {
      const T* out_row = out.row(first + r);
      Floats delta = Zero();
      ForEachVector(0, head_dim, [&](int64_t d, auto lanes) HWY_ATTR {
        delta =
            hn::MulAdd(Load(out_row + d, lanes), Load(scratch.d_out + r * width + d, lanes), delta);
      });
      scratch.delta[r] = Sum(delta);
    }
    const int64_t first_key = RoundDown(FirstKey(forward, first), kPanel);
    for (int64_t begin = first_key; begin < positions.end; begin += kKeyChunk) {
      const int64_t end = std::min(begin + kKeyChunk, positions.end);
      BackwardChunk(forward, scratch, {positions, log_sum_exp}, {begin, end});
    }
    WriteRows(scratch.d_query, width, scale, d_query, positions, head_dim);
  }
}

template <typename T>
void AttentionBackwardOf(const AttentionBackwardArgs& args, float* memory, Range groups) {
  const AttentionArgs& forward = args.forward;
  const BackwardScratch scratch(forward, memory);
  const int64_t head_dim = forward.head_dim;
  const int64_t heads_per_group = forward.heads / forward.kv_heads;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t b = g / forward.kv_heads, kv_head = g % forward.kv_heads;
    const int64_t first_row = b * forward.seq;
    AttentionBackwardArgs of_sequence = args;
    of_sequence.forward = WithDocumentsOf(forward, b);
    const Range all{0, forward.seq};
    const Head<T> keys(forward.k, first_row, kv_head, head_dim);
    const Head<T> values(forward.v, first_row, kv_head, head_dim);
    CopyPanels(keys, forward.seq, head_dim, scratch.key_panels);
    CopyPanels(values, forward.seq, head_dim, scratch.value_panels);
    CopyRows(keys, all, head_dim, 1, scratch.keys, scratch.seq, scratch.width);
    std::fill(scratch.d_keys, scratch.d_keys + scratch.seq * scratch.width, 0.0f);
    std::fill(scratch.d_values, scratch.d_values + scratch.seq * scratch.width, 0.0f);
    for (int64_t i = 0; i < heads_per_group; ++i) {
      BackwardHead<T>(of_sequence, scratch, b, kv_head * heads_per_group + i);
    }
    WriteRows(scratch.d_keys, scratch.width, 1, Head<T>(args.d_k, first_row, kv_head, head_dim),
              all, head_dim);
    WriteRows(scratch.d_values, scratch.width, 1, Head<T>(args.d_v, first_row, kv_head, head_dim),
              all, head_dim);
  }
}

void AttentionEntry(const AttentionArgs& args, float* scratch, Range groups) {
  args.q.dtype == DType::kF32 ? AttentionOf<float>(args, scratch, groups)
                              : AttentionOf<BFloat16>(args, scratch, groups);
}
void AttentionBackwardEntry(const AttentionBackwardArgs& args, float* scratch, Range groups) {
  args.d_out.dtype == DType::kF32 ? AttentionBackwardOf<float>(args, scratch, groups)
                                  : AttentionBackwardOf<BFloat16>(args, scratch, groups);
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::ops::cpu {

HWY_EXPORT(AttentionEntry);
HWY_EXPORT(AttentionBackwardEntry);

// Whether attention runs in blocks, which multiply bf16 inputs without conversion.
static bool UsesBlocks(const AttentionArgs& args) {
  return args.q.dtype == DType::kBF16 && MultipliesBFloat16();
}

int64_t AttentionScratchSize(const AttentionArgs& args) {
  return UsesBlocks(args) ? BlockAttentionScratchSize(args) : ForwardScratch::Size(args);
}
int64_t AttentionBackwardScratchSize(const AttentionArgs& args) {
  return UsesBlocks(args) ? BlockAttentionBackwardScratchSize(args) : BackwardScratch::Size(args);
}

void Attention(const AttentionArgs& args, float* scratch, Range groups) {
  if (UsesBlocks(args)) return BlockAttention(args, scratch, groups);
  HWY_DYNAMIC_DISPATCH(AttentionEntry)(args, scratch, groups);
}
void AttentionBackward(const AttentionBackwardArgs& args, float* scratch, Range groups) {
  if (UsesBlocks(args.forward)) return BlockAttentionBackward(args, scratch, groups);
  HWY_DYNAMIC_DISPATCH(AttentionBackwardEntry)(args, scratch, groups);
}

}  // namespace megascale::ops::cpu
#endif
