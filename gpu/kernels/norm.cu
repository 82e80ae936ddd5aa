// LayerNorm and RMSNorm both ways, and sums of columns. Legend: N rows, C columns, at most 16,384.
//
// A row takes W warps, the least power of two with 1,024 W >= C, so that a thread has at most 32 of
// its elements in registers: pack p of thread t is the p * 32 W + t th of the row. A block is four
// rows of one warp each, which need no barrier, or one row of several warps.
//
// Forward: a thread loads its elements once, adds and stores the delta, and goes on with the sum as
// it was rounded to the type of the tensor: backward reads that. Statistics are fp32: first the
// mean, then the squares of the distances from it, both from the registers. Bytes for an element of
// E bytes: 2 E, with a delta 4 E.
//
// Backward, with n = (x - mean) * rstd and g = d_out * weight:
//   d_x += rstd * (g - mean of g - n * mean of (g n))        (RMSNorm: without the mean of g)
//   d_weight += sum over rows of d_out * n,  d_bias += sum over rows of d_out
// A block goes through a range of rows. A thread reads its elements of a row twice, before and
// after the means are known, from places in shared memory that are its own: x and d_out come there
// by asynchronous copies, and as soon as it has read a pack for the second time it starts the copy
// of the next row's. Its columns of d_weight and d_bias it adds up in registers. In the end the
// sums of rows that the block worked on side by side are added in their order, through the same
// memory, and the block writes its sums as one row of the workspace; FoldColumns adds the blocks'
// rows. Bytes: 4 E for an element, and 16 C for each block; shared memory: 64 E for each thread.
// The number of blocks follows from the shape, and with it the order of all sums: lanes by
// butterflies, then warps of a row, rows of a block, blocks, each in ascending order.
//
// Sums of columns: a block owns 32 packs of columns and a range of rows, of which each of its eight
// warps takes every eighth; the warps' sums are added in their order; then FoldColumns. Bytes: E
// for an element.
//
// FoldColumns: a block owns 32 columns, each of its 16 warps adds a sixteenth of the parts in
// order, and the sixteen sums are added in order.
//
// Two reductions that follow each other use different scratch, so one barrier is enough for each:
// whoever writes to scratch again has passed the barrier of the reduction between, and so has
// everybody who read it.
#include "gpu/kernels/norm_params.h"

#include "gpu/kernels/elements.h"
#include "gpu/kernels/reduce.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {
namespace {

// This thread among those that share a row.
struct Member {
  int group;        // the row's place among those that the block works on side by side
  int num_groups;   // these rows
  int thread;       // of the row
  int num_threads;  // of the row
};
MEGASCALE_DEVICE Member Me(int warps_of_row) {
  const int num_threads = warps_of_row * kLanes;
  return {Warp() / warps_of_row, NumWarps() / warps_of_row, ThreadIndex() % num_threads,
          num_threads};
}

// The packs of a row that a thread owns. Where kAligned, the row is made of whole packs.
template <typename T, bool kAligned>
struct OwnPacks {
  static constexpr int kPack = kPackOf<T>;
  int cols;
  Member me;

  MEGASCALE_DEVICE int First(int p) const { return (p * me.num_threads + me.thread) * kPack; }
  // Elements of pack `p` that the row has.
  MEGASCALE_DEVICE int Count(int p) const {
    if constexpr (kAligned) return First(p) < cols ? kPack : 0;
    return max(0, min(kPack, cols - First(p)));
  }
  MEGASCALE_DEVICE Pack<T, kPack> Load(const Global<const T>& row, int p) const {
    if constexpr (kAligned) {
      return First(p) < cols ? row.template Load<kPack>(First(p)) : Pack<T, kPack>{};
    }
    return LoadPiece<kPack>(row, {First(p), Count(p), false});
  }
  MEGASCALE_DEVICE void Store(const Global<T>& row, int p, const float (&values)[kPack]) const {
    if constexpr (kAligned) {
      if (First(p) < cols) StoreFloats(row, {First(p), kPack, true}, values);
    } else {
      StoreFloats(row, {First(p), Count(p), false}, values);
    }
  }
};

// Replaces the values of each thread by their sums over the row. `scratch` has room for
// kCount * NumWarps() numbers.
template <int kCount>
MEGASCALE_DEVICE void SumOverRow(float (&values)[kCount], const Member& me, Shared<float> scratch,
                                 Where where = Where::current()) {
  MEGASCALE_UNROLL
  for (int i = 0; i < kCount; ++i) values[i] = ReduceWarp(values[i], Sum(), where);
  if (me.num_threads == kLanes) return;
  if (Lane() == 0) {
    for (int i = 0; i < kCount; ++i) scratch[i * NumWarps() + Warp()] = values[i];
  }
  SyncThreads(where);
  MEGASCALE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    values[i] = scratch[i * NumWarps()];
    for (int warp = 1; warp < NumWarps(); ++warp) values[i] += scratch[i * NumWarps() + warp];
  }
}

template <typename T>
constexpr int kNormPacks = kNormElements / kPackOf<T>;

// Loads the row, with delta, and stores the sum.
template <typename T, bool kAligned>
MEGASCALE_DEVICE void LoadInput(const NormParams& params, int64_t row,
                                const OwnPacks<T, kAligned>& packs,
                                float (&in)[kNormPacks<T>][kPackOf<T>]) {
  constexpr int kPack = kPackOf<T>, kPacks = kNormPacks<T>;
  Pack<T, kPack> x[kPacks], delta[kPacks];
  MEGASCALE_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    x[p] = packs.Load(RowOf<const T>(params.x, row), p);
  }
  const bool has_delta = params.delta.data != nullptr;
  if (has_delta) {
    MEGASCALE_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      delta[p] = packs.Load(RowOf<const T>(params.delta, row), p);
    }
  }
  MEGASCALE_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    MEGASCALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      in[p][i] = ToFloat(x[p].at[i]);
      if (has_delta) in[p][i] = ToFloat(FromFloat<T>(in[p][i] + ToFloat(delta[p].at[i])));
    }
    if (has_delta) packs.Store(RowOf<T>(params.sum, row), p, in[p]);
  }
}

template <typename T, bool kAligned>
MEGASCALE_DEVICE void NormForward(const NormParams& params) {
  constexpr int kPack = kPackOf<T>, kPacks = kNormPacks<T>;
  const Shared<float> scratch = DynamicShared<float>(0);
  const Member me = Me(params.warps_of_row);
  const int64_t row = int64_t{BlockIndex()} * me.num_groups + me.group;
  if (row >= params.rows) return;  // a row of one warp: no barrier is missed
  const OwnPacks<T, kAligned> packs = {params.cols, me};
  float in[kPacks][kPack];
  LoadInput(params, row, packs, in);

  float mean = 0;
  if (params.mean != nullptr) {
    float sum[1] = {0};
    MEGASCALE_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      MEGASCALE_UNROLL
      for (int i = 0; i < kPack; ++i) sum[0] += in[p][i];
    }
    SumOverRow(sum, me, scratch);
    mean = sum[0] / static_cast<float>(params.cols);
  }
  float square[1] = {0};
  MEGASCALE_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int count = packs.Count(p);
    MEGASCALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      in[p][i] -= mean;
      if (i < count) square[0] += in[p][i] * in[p][i];
    }
  }
  SumOverRow(square, me, scratch + NumWarps());
  const float rstd = ReciprocalSqrt(square[0] / static_cast<float>(params.cols) + params.eps);

  const Global<const T> weight(params.weight), bias(params.bias);
  MEGASCALE_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const Pack<T, kPack> scale = packs.Load(weight, p);
    const Pack<T, kPack> shift = bias ? packs.Load(bias, p) : Pack<T, kPack>{};
    MEGASCALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      in[p][i] = in[p][i] * rstd * ToFloat(scale.at[i]) + ToFloat(shift.at[i]);
    }
    packs.Store(RowOf<T>(params.out, row), p, in[p]);
  }
  if (me.thread != 0) return;
  const Global<float> means(params.mean), rstds(params.rstd);
  if (means) means[row] = mean;
  rstds[row] = rstd;
}

// The packs of x and d_out of one row that a thread owns, in shared memory that no other thread
// touches: the copies take no registers, and those of the next row are under way while this one is
// worked on.
template <typename T, bool kAligned>
struct RowInShared {
  static constexpr int kPack = kPackOf<T>;
  const NormBackwardParams& params;
  OwnPacks<T, kAligned> packs;
  Shared<T> slots;  // [2 kNormPacks, threads] packs

  MEGASCALE_DEVICE int64_t Slot(int of, int p) const {
    return int64_t{(2 * p + of) * NumThreads() + ThreadIndex()} * kPack;
  }
  MEGASCALE_DEVICE Pack<T, kPack> X(int p) const { return slots.template Load<kPack>(Slot(0, p)); }
  MEGASCALE_DEVICE Pack<T, kPack> DOut(int p) const {
    return slots.template Load<kPack>(Slot(1, p));
  }
  // Begins to copy pack `p` of `row`. It is there after CommitCopies and WaitCopies.
  MEGASCALE_DEVICE void Fetch(int64_t row, int p) const {
    if (packs.Count(p) == 0) return;
    const Global<const T> x = RowOf<const T>(params.x, row);
    const Global<const T> d_out = RowOf<const T>(params.d_out, row);
    if constexpr (kAligned) {
      CopyAsync<16>(slots + Slot(0, p), x + packs.First(p));
      CopyAsync<16>(slots + Slot(1, p), d_out + packs.First(p));
    } else {
      slots.Store(Slot(0, p), packs.Load(x, p));
      slots.Store(Slot(1, p), packs.Load(d_out, p));
    }
  }
};

// A thread's sums of columns: d_weight, then d_bias.
template <typename T>
struct ColumnTotals {
  float at[2][kNormPacks<T>][kPackOf<T>];
};

// d_x of `row`, and what the row adds to the sums of columns; then begins to copy `next_row`, if
// that is one. `scratch` was not used for the row before.
template <typename T, bool kAligned>
MEGASCALE_DEVICE void NormBackwardRow(const RowInShared<T, kAligned>& in, int64_t row,
                                      int64_t next_row, ColumnTotals<T>& totals,
                                      Shared<float> scratch, Where where = Where::current()) {
  constexpr int kPack = kPackOf<T>, kPacks = kNormPacks<T>;
  const NormBackwardParams& params = in.params;
  const OwnPacks<T, kAligned>& packs = in.packs;
  const Global<const T> weights(params.weight);
  const bool is_centred = params.mean != nullptr;
  const float mean = is_centred ? Global<const float>(params.mean)[row] : 0;
  const float rstd = Global<const float>(params.rstd)[row];
  float sums[2] = {0, 0};  // of g, and of g n
  MEGASCALE_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    if (packs.Count(p) == 0) continue;
    const Pack<T, kPack> x = in.X(p), d_out = in.DOut(p), weight = packs.Load(weights, p);
    MEGASCALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float d = ToFloat(d_out.at[i]), product = d * ((ToFloat(x.at[i]) - mean) * rstd);
      sums[0] += d * ToFloat(weight.at[i]);
      sums[1] += product * ToFloat(weight.at[i]);
      totals.at[0][p][i] += product;
      totals.at[1][p][i] += d;
    }
  }
  SumOverRow(sums, packs.me, scratch, where);
  const float mean_g = is_centred ? sums[0] / static_cast<float>(params.cols) : 0;
  const float mean_gn = sums[1] / static_cast<float>(params.cols);
  const Global<T> d_x = RowOf<T>(params.d_x, row);
  for (int p = 0; p < kPacks; ++p) {
    if (packs.Count(p) == 0) break;
    const Pack<T, kPack> before = packs.Load(Global<const T>(d_x.data()), p);
    const Pack<T, kPack> x = in.X(p), d_out = in.DOut(p), weight = packs.Load(weights, p);
    if (next_row < params.rows) in.Fetch(next_row, p);
    float result[kPack];
    MEGASCALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float g = ToFloat(d_out.at[i]) * ToFloat(weight.at[i]);
      const float normal = (ToFloat(x.at[i]) - mean) * rstd;
      result[i] = ToFloat(before.at[i]) + rstd * (g - mean_g - normal * mean_gn);
    }
    packs.Store(d_x, p, result);
  }
  CommitCopies();
}

// Adds to the sums `totals` of the threads of group 0 those of the other groups, in their order.
// `slots` is used by nobody any more, and has room for kNormElements numbers of each thread.
template <typename T>
MEGASCALE_DEVICE void AddGroups(float (&totals)[kNormPacks<T>][kPackOf<T>], const Member& me,
                                const Shared<float>& slots, Where where = Where::current()) {
  constexpr int kPack = kPackOf<T>;
  const auto slot = [](int element, int thread) {
    return int64_t{element / 4 * NumThreads() + thread} * 4;
  };
  MEGASCALE_UNROLL
  for (int e = 0; e < kNormElements; e += 4) {
    const float* four = totals[e / kPack] + e % kPack;
    slots.Store(slot(e, ThreadIndex()), Pack<float, 4>{four[0], four[1], four[2], four[3]});
  }
  SyncThreads(where);
  for (int group = 1; group < me.num_groups && me.group == 0; ++group) {
    MEGASCALE_UNROLL
    for (int e = 0; e < kNormElements; e += 4) {
      const Pack<float, 4> four = slots.Load<4>(slot(e, group * me.num_threads + me.thread));
      MEGASCALE_UNROLL
      for (int i = 0; i < 4; ++i) totals[e / kPack][e % kPack + i] += four.at[i];
    }
  }
  SyncThreads(where);  // the slots may be used again
}

template <typename T, bool kAligned>
MEGASCALE_DEVICE void NormBackward(const NormBackwardParams& params) {
  constexpr int kPack = kPackOf<T>, kPacks = kNormPacks<T>;
  const Member me = Me(params.warps_of_row);
  const Shared<float> scratch = DynamicShared<float>(0);
  constexpr int kSlotsAt = kNormScratchFloats * static_cast<int>(sizeof(float));
  const RowInShared<T, kAligned> in = {params, {params.cols, me}, DynamicShared<T>(kSlotsAt)};
  const int64_t first = int64_t{BlockIndex()} * params.rows_of_block;
  const int64_t end = min(first + params.rows_of_block, int64_t{params.rows});
  ColumnTotals<T> totals = {};
  int64_t row = first + me.group;
  for (int p = 0; p < kPacks && row < end; ++p) in.Fetch(row, p);
  CommitCopies();
  WaitCopies<0>();
  for (int turn = 0; row < end; turn = 1 - turn) {
    const int64_t next_row = row + me.num_groups < end ? row + me.num_groups : params.rows;
    NormBackwardRow(in, row, next_row, totals, scratch + turn * 2 * NumWarps());
    row += me.num_groups;
    WaitCopies<0>();
  }
  MEGASCALE_UNROLL
  for (int of = 0; of < 2; ++of) {
    if (me.num_groups > 1) AddGroups<T>(totals.at[of], me, DynamicShared<float>(kSlotsAt));
    if (me.group != 0) continue;
    const Global<float> out =
        Global<float>(params.partials) + (int64_t{of} * NumBlocks() + BlockIndex()) * params.cols;
    MEGASCALE_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int count = in.packs.Count(p);
      StoreFloats(out, {in.packs.First(p), count, kAligned && count == kPack}, totals.at[of][p]);
    }
  }
}

template <typename T>
MEGASCALE_DEVICE void ColumnSums(const ColumnSumsParams& params) {
  constexpr int kPack = kPackOf<T>, kRowsAtOnce = 4;
  const Piece piece = PieceAt<kPack>((int64_t{BlockIndex()} * kLanes + Lane()) * kPack, params.cols,
                                     params.is_aligned);
  const int64_t first = int64_t{BlockIndexY()} * params.rows_of_block;
  const int64_t end = min(first + params.rows_of_block, int64_t{params.rows});
  const int step = NumWarps();
  float sums[kPack] = {};
  for (int64_t row = first + Warp(); row < end; row += step * kRowsAtOnce) {
    Pack<T, kPack> x[kRowsAtOnce];
    MEGASCALE_UNROLL
    for (int k = 0; k < kRowsAtOnce; ++k) {
      const int64_t at = row + k * step;
      x[k] = at < end ? LoadPiece<kPack>(RowOf<const T>(params.x, at), piece) : Pack<T, kPack>{};
    }
    MEGASCALE_UNROLL
    for (int k = 0; k < kRowsAtOnce; ++k) {
      MEGASCALE_UNROLL
      for (int i = 0; i < kPack; ++i) sums[i] += ToFloat(x[k].at[i]);
    }
  }
  const Shared<float> of_warps = DynamicShared<float>(0);  // [kPack, threads]
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) of_warps[i * NumThreads() + ThreadIndex()] = sums[i];
  SyncThreads();
  if (Warp() != 0) return;
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) {
    for (int warp = 1; warp < NumWarps(); ++warp) {
      sums[i] += of_warps[i * NumThreads() + warp * kLanes + Lane()];
    }
  }
  const bool is_whole = params.cols % 4 == 0 && piece.count == kPack;
  StoreFloats(Global<float>(params.partials) + int64_t{BlockIndexY()} * params.cols,
              {piece.first, piece.count, is_whole}, sums);
}

}  // namespace

MEGASCALE_KERNEL(NormForwardF32, NormParams, kNormThreadsMax) {
  params.is_aligned ? NormForward<float, true>(params) : NormForward<float, false>(params);
}
MEGASCALE_KERNEL(NormForwardBF16, NormParams, kNormThreadsMax) {
  params.is_aligned ? NormForward<BFloat16, true>(params) : NormForward<BFloat16, false>(params);
}
MEGASCALE_KERNEL(NormBackwardF32, NormBackwardParams, kNormThreadsMax) {
  params.is_aligned ? NormBackward<float, true>(params) : NormBackward<float, false>(params);
}
MEGASCALE_KERNEL(NormBackwardBF16, NormBackwardParams, kNormThreadsMax) {
  params.is_aligned ? NormBackward<BFloat16, true>(params) : NormBackward<BFloat16, false>(params);
}

// Grid: [tiles of columns, ranges of rows].
MEGASCALE_KERNEL(ColumnSumsF32, ColumnSumsParams, kColumnSumsThreads) { ColumnSums<float>(params); }
MEGASCALE_KERNEL(ColumnSumsBF16, ColumnSumsParams, kColumnSumsThreads) {
  ColumnSums<BFloat16>(params);
}

// Grid: [tiles of 32 columns, outputs].
MEGASCALE_KERNEL(FoldColumns, FoldParams, kFoldThreads) {
  const int col = BlockIndex() * kLanes + Lane();
  const int parts_of_warp = (params.parts + NumWarps() - 1) / NumWarps();
  const int first = Warp() * parts_of_warp, end = min(first + parts_of_warp, params.parts);
  const Global<const float> partials =
      Global<const float>(params.partials) + int64_t{BlockIndexY()} * params.parts * params.cols;
  float sum = 0;
  if (col < params.cols) {
    for (int part = first; part < end; ++part) sum += partials[int64_t{part} * params.cols + col];
  }
  const Shared<float> of_warps = DynamicShared<float>(0);  // [warps, 32]
  of_warps[ThreadIndex()] = sum;
  SyncThreads();
  if (Warp() != 0 || col >= params.cols) return;
  for (int warp = 1; warp < NumWarps(); ++warp) sum += of_warps[warp * kLanes + Lane()];
  const Global<float> out(BlockIndexY() == 0 ? params.out[0] : params.out[1]);
  out[col] += sum;
}

}  // namespace megascale::kernels
