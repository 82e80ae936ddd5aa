// Flash attention forward for heads of 64 and 128 elements in bf16, causal, with a window,
// documents and grouped queries. Source: Dao, FlashAttention-2, 2023, algorithm 1.
//
// A block owns kAttentionRows queries of one head; each of its four warps owns 16 of them. It reads
// the keys and values that they see in tiles of kAttentionKeys, the next tile while it works on
// this one, and keeps for each row the greatest score so far, the sum of exp(score - greatest), and
// the weighted sum of values, which it scales when the greatest score grows. So memory is linear in
// T: nothing of the scores leaves the registers.
//
// Device memory, read and written once per block: q and out, 4 D bytes a row; k and v, 4 D bytes
// for each key that the block sees. Shared memory: AttentionForwardBytes. Sums: over D in the order
// of the tensor cores, over keys tile by tile: the order follows from the shape alone. Scores, sums
// and outputs are fp32; the weights are rounded to bf16 before they meet the values.
#include "gpu/kernels/attention_params.h"
#include "gpu/kernels/attention_sight.h"
#include "gpu/kernels/attention_tiles.h"
#include "gpu/kernels/reduce.h"

namespace megascale::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -3.0e38f;  // a score below all others; differences stay finite

// What a lane keeps of its two rows.
template <int kHeadDim>
struct Rows {
  float greatest[2] = {kLowest, kLowest};
  float sum[2] = {0, 0};  // of this lane's columns
  float out[kHeadDim / 8][4] = {};
};

// Replaces the scores of queries that do not see a key. `row` and `key` are the positions of the
// first row and column; `first_keys` are what this lane's two rows see first.
template <int kKeys>
MEGASCALE_DEVICE void Mask(float (&scores)[kKeys / 8][4], const int (&first_keys)[2], int row,
                           int key) {
  MEGASCALE_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    MEGASCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int query = row + RowOf(i), at = key + ColOf(n, i);
      const bool is_seen = at <= query && at >= first_keys[i / 2];
      if (!is_seen) scores[n][i] = kLowest;
    }
  }
}

// Takes a tile of scores into the rows and turns them into weights.
template <int kHeadDim>
MEGASCALE_DEVICE void AddTile(Rows<kHeadDim>& rows, float (&scores)[kAttentionKeys / 8][4],
                              float scale_log2, Where where = Where::current()) {
  MEGASCALE_UNROLL
  for (int r = 0; r < 2; ++r) {
    float greatest = rows.greatest[r];
    MEGASCALE_UNROLL
    for (int n = 0; n < kAttentionKeys / 8; ++n) {
      greatest = Greatest()(greatest, Greatest()(scores[n][2 * r], scores[n][2 * r + 1]));
    }
    // The four lanes of a row.
    greatest = Greatest()(greatest, ShuffleXor(greatest, 1, where));
    greatest = Greatest()(greatest, ShuffleXor(greatest, 2, where));
    const float shrink = Exp2((rows.greatest[r] - greatest) * scale_log2);
    rows.greatest[r] = greatest;
    rows.sum[r] *= shrink;
    MEGASCALE_UNROLL
    for (int n = 0; n < kHeadDim / 8; ++n) {
      rows.out[n][2 * r] *= shrink;
      rows.out[n][2 * r + 1] *= shrink;
    }
    MEGASCALE_UNROLL
    for (int n = 0; n < kAttentionKeys / 8; ++n) {
      MEGASCALE_UNROLL
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        // A row that has seen no key yet keeps no weight of the masked ones.
        const float score = scores[n][i];
        const float weight = score == kLowest ? 0 : Exp2((score - greatest) * scale_log2);
        rows.sum[r] += weight;
        scores[n][i] = weight;
      }
    }
  }
}

template <int kHeadDim>
MEGASCALE_DEVICE void Forward(const AttentionParams& params) {
  constexpr int kTileBytes = 2 * kAttentionKeys * kHeadDim;
  const int first_query = BlockIndex() * kAttentionRows, head = BlockIndexY();
  const int key_head = head / (params.heads / params.kv_heads);
  const int64_t first_token = static_cast<int64_t>(BlockIndexZ()) * params.seq;
  const Global<const BFloat16> q =
      Global<const BFloat16>(params.q.data) +
      ((first_token + first_query) * params.q.stride + head * kHeadDim);
  const Global<const BFloat16> k =
      Global<const BFloat16>(params.k.data) + (first_token * params.k.stride + key_head * kHeadDim);
  const Global<const BFloat16> v =
      Global<const BFloat16>(params.v.data) + (first_token * params.v.stride + key_head * kHeadDim);
  const Tile<kHeadDim> q_tile(DynamicShared<BFloat16>(4 * kTileBytes));
  const auto k_tile = [](int turn) {
    return Tile<kHeadDim>(DynamicShared<BFloat16>(turn % 2 * kTileBytes));
  };
  const auto v_tile = [](int turn) {
    return Tile<kHeadDim>(DynamicShared<BFloat16>((2 + turn % 2) * kTileBytes));
  };
  const auto copy_keys = [&](int turn) {
    const int key = turn * kAttentionKeys, num_valid = params.seq - key;
    CopyTile<kAttentionKeys>(k_tile(turn), k + key * params.k.stride, params.k.stride, num_valid);
    CopyTile<kAttentionKeys>(v_tile(turn), v + key * params.v.stride, params.v.stride, num_valid);
  };

  const int last_query = min(first_query + kAttentionRows, params.seq) - 1;
  const int first_key = FirstKey(params, first_token, first_query);
  const int first_turn = first_key / kAttentionKeys, last_turn = last_query / kAttentionKeys;
  CopyTile<kAttentionRows>(q_tile, q, params.q.stride, params.seq - first_query);
  copy_keys(first_turn);
  CommitCopies();

  const float scale_log2 = params.scale * kLog2E;
  const int row = Warp() * 16;
  const int first_keys[2] = {FirstKey(params, first_token, first_query + row + RowOf(0)),
                             FirstKey(params, first_token, first_query + row + RowOf(2))};
  Rows<kHeadDim> rows;
  for (int turn = first_turn; turn <= last_turn; ++turn) {
    if (turn < last_turn) copy_keys(turn + 1);
    CommitCopies();
    WaitCopies<1>();
    SyncThreads();
    float scores[kAttentionKeys / 8][4] = {};
    MultiplyByTransposed<kAttentionKeys>(scores, q_tile, row, k_tile(turn));
    Mask<kAttentionKeys>(scores, first_keys, first_query + row, turn * kAttentionKeys);
    AddTile(rows, scores, scale_log2);
    uint32_t weights[kAttentionKeys / 16][4];
    RoundToA<kAttentionKeys>(weights, scores);
    MultiplyByTile<kAttentionKeys>(rows.out, weights, v_tile(turn));
    SyncThreads();  // the next turn copies over these keys
  }
  WaitCopies<0>();

  const Global<float> log_sum_exp =
      Global<float>(params.log_sum_exp) +
      (static_cast<int64_t>(BlockIndexZ()) * params.heads + head) * params.seq;
  float factors[2];
  MEGASCALE_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r] + ShuffleXor(rows.sum[r], 1);
    sum += ShuffleXor(sum, 2);
    factors[r] = 1.0f / sum;
    const int query = first_query + row + RowOf(2 * r);
    if (Lane() % 4 == 0 && query < params.seq) {
      log_sum_exp[query] = rows.greatest[r] * params.scale + Log(sum);
    }
  }
  const Global<BFloat16> out = Global<BFloat16>(params.out.data) +
                               ((first_token + first_query) * params.out.stride + head * kHeadDim);
  WriteRows<kHeadDim>(out, params.out.stride, row, params.seq - first_query, rows.out, factors);
}

}  // namespace

// Grid: [tiles of queries, H, B].
MEGASCALE_KERNEL(AttentionForward64, AttentionParams, kAttentionThreads) { Forward<64>(params); }
MEGASCALE_KERNEL(AttentionForward128, AttentionParams, kAttentionThreads) { Forward<128>(params); }

}  // namespace megascale::kernels
