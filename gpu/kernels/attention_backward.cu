// Flash attention backward for heads of 64 and 128 elements in bf16: two kernels that compute the
// weights again from log_sum_exp, one for the gradient of the queries and one for those of keys and
// values. Source: Dao, FlashAttention-2, 2023, algorithm 2; there one kernel adds the gradients of
// queries with atomic operations, in an order that changes from run to run. Here each gradient has
// one owner, which adds in a fixed order; the price is seven products instead of five.
//
// With p = exp(score - log_sum_exp), dp = d_out v^T and delta = d_out . out of the row, the
// gradient of a score is ds = p (dp - delta) scale.
//
// AttentionBackwardQueries: a block owns kAttentionRows queries of one head, a warp 16 of them, and
// reads the keys and values that they see in tiles: s = q k^T, dp = d_out v^T, d_q += ds k.
//
// AttentionBackwardKeys: a block owns kAttentionRows keys of one key/value head, a warp 16 of them,
// and reads the queries that see them, head after head of its group, in tiles of kAttentionQueries:
// s^T = k q^T, dp^T = v d_out^T, d_v += p^T d_out, d_k += ds^T q.
//
// Device memory: a block reads its own rows and, in tiles, those of the other side, 4 D bytes a row
// of each, and writes 2 D (4 D) bytes a row. Shared memory: AttentionQueriesBytes,
// AttentionKeysBytes. p and ds are rounded to bf16 before they meet the next factor; sums are fp32,
// tile by tile, so their order follows from the shape alone.
#include "gpu/kernels/attention_params.h"
#include "gpu/kernels/attention_sight.h"
#include "gpu/kernels/attention_tiles.h"

namespace megascale::kernels {
namespace {

// Where a block's head lies in the matrices.
struct HeadPlace {
  int64_t first_token;
  int head;
  int key_head;

  template <int kHeadDim>
  MEGASCALE_DEVICE Global<BFloat16> Of(const AttentionMatrix& matrix, int of_head) const {
    return Global<BFloat16>(matrix.data) + (first_token * matrix.stride + of_head * kHeadDim);
  }
  // The statistics of the rows of a query head.
  MEGASCALE_DEVICE Global<const float> Statistics(const float* all, const AttentionParams& params,
                                                  int of_head) const {
    return Global<const float>(all) + (first_token * params.heads + int64_t{of_head} * params.seq);
  }
};

MEGASCALE_DEVICE Global<const BFloat16> RowsFrom(const Global<BFloat16>& matrix, int64_t stride,
                                                 int row) {
  return Global<const BFloat16>(matrix.data() + row * stride);
}

template <int kHeadDim>
MEGASCALE_DEVICE void BackwardQueries(const AttentionParams& params) {
  constexpr int kTileKeys = kAttentionBackwardKeys;
  constexpr int kTileBytes = 2 * kTileKeys * kHeadDim;
  const int first_query = BlockIndex() * kAttentionRows;
  const HeadPlace place = {int64_t{BlockIndexZ()} * params.seq, BlockIndexY(),
                           BlockIndexY() / (params.heads / params.kv_heads)};
  const Global<BFloat16> k = place.Of<kHeadDim>(params.k, place.key_head);
  const Global<BFloat16> v = place.Of<kHeadDim>(params.v, place.key_head);
  const auto tile = [](int index) {
    return Tile<kHeadDim>(DynamicShared<BFloat16>(index * kTileBytes));
  };
  const auto k_tile = [&](int turn) { return tile(turn % 2); };
  const auto v_tile = [&](int turn) { return tile(2 + turn % 2); };
  const Tile<kHeadDim> q_tile(DynamicShared<BFloat16>(4 * kTileBytes));
  const Tile<kHeadDim> d_out_tile(
      DynamicShared<BFloat16>(4 * kTileBytes + 2 * kAttentionRows * kHeadDim));
  const auto copy_keys = [&](int turn) {
    const int key = turn * kTileKeys, num_valid = params.seq - key;
    CopyTile<kTileKeys>(k_tile(turn), RowsFrom(k, params.k.stride, key), params.k.stride,
                        num_valid);
    CopyTile<kTileKeys>(v_tile(turn), RowsFrom(v, params.v.stride, key), params.v.stride,
                        num_valid);
  };

  const int last_query = min(first_query + kAttentionRows, params.seq) - 1;
  const int first_key = FirstKey(params, place.first_token, first_query);
  const int first_turn = first_key / kTileKeys, last_turn = last_query / kTileKeys;
  CopyTile<kAttentionRows>(
      q_tile, RowsFrom(place.Of<kHeadDim>(params.q, place.head), params.q.stride, first_query),
      params.q.stride, params.seq - first_query);
  CopyTile<kAttentionRows>(
      d_out_tile,
      RowsFrom(place.Of<kHeadDim>(params.d_out, place.head), params.d_out.stride, first_query),
      params.d_out.stride, params.seq - first_query);
  copy_keys(first_turn);
  CommitCopies();

  const int row = Warp() * 16;
  const Global<const float> log_sum_exp = place.Statistics(params.log_sum_exp, params, place.head);
  const Global<const float> deltas = place.Statistics(params.delta, params, place.head);
  float lse[2], delta[2];
  int first_keys[2];
  MEGASCALE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int query = first_query + row + RowOf(2 * r);
    lse[r] = query < params.seq ? log_sum_exp[query] : 0;
    delta[r] = query < params.seq ? deltas[query] : 0;
    first_keys[r] = FirstKey(params, place.first_token, query);
  }
  float d_q[kHeadDim / 8][4] = {};
  for (int turn = first_turn; turn <= last_turn; ++turn) {
    if (turn < last_turn) copy_keys(turn + 1);
    CommitCopies();
    WaitCopies<1>();
    SyncThreads();
    float p[kTileKeys / 8][4] = {}, ds[kTileKeys / 8][4] = {};
    MultiplyByTransposed<kTileKeys>(p, q_tile, row, k_tile(turn));
    MultiplyByTransposed<kTileKeys>(ds, d_out_tile, row, v_tile(turn));
    MEGASCALE_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      MEGASCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int query = first_query + row + RowOf(i);
        const int key = turn * kTileKeys + ColOf(n, i);
        const bool is_seen = key <= query && key >= first_keys[i / 2] && query < params.seq;
        const float weight = is_seen ? Exp(p[n][i] * params.scale - lse[i / 2]) : 0;
        ds[n][i] = weight * (ds[n][i] - delta[i / 2]) * params.scale;
      }
    }
    uint32_t factors[kTileKeys / 16][4];
    RoundToA<kTileKeys>(factors, ds);
    MultiplyByTile<kTileKeys>(d_q, factors, k_tile(turn));
    SyncThreads();  // the next turn copies over these keys
  }
  WaitCopies<0>();
  WriteRows<kHeadDim>(place.Of<kHeadDim>(params.d_q, place.head) + first_query * params.d_q.stride,
                      params.d_q.stride, row, params.seq - first_query, d_q, {1.0f, 1.0f});
}

template <int kHeadDim>
MEGASCALE_DEVICE void BackwardKeys(const AttentionParams& params) {
  constexpr int kRowsBytes = 2 * kAttentionRows * kHeadDim;
  constexpr int kQueriesBytes = 2 * kAttentionQueries * kHeadDim;
  const int first_key = BlockIndex() * kAttentionRows;
  const int group = params.heads / params.kv_heads;
  const HeadPlace place = {int64_t{BlockIndexZ()} * params.seq, BlockIndexY() * group,
                           BlockIndexY()};
  const Tile<kHeadDim> k_tile(DynamicShared<BFloat16>(0));
  const Tile<kHeadDim> v_tile(DynamicShared<BFloat16>(kRowsBytes));
  const auto queries_tile = [](int index) {
    return Tile<kHeadDim>(DynamicShared<BFloat16>(2 * kRowsBytes + index * kQueriesBytes));
  };
  // log_sum_exp and delta of the queries of a turn.
  const auto statistics = [](int turn) {
    return DynamicShared<float>(2 * kRowsBytes + 4 * kQueriesBytes) +
           turn % 2 * 2 * kAttentionQueries;
  };

  // The queries that see these keys: those of each head of the group, in tiles, one turn each.
  const int last_key = min(first_key + kAttentionRows, params.seq) - 1;
  const int end_query = EndOfQueries(params, place.first_token, last_key);
  const int first_tile = first_key / kAttentionQueries;
  const int num_tiles = (end_query - 1) / kAttentionQueries - first_tile + 1;
  const int num_turns = num_tiles * group;
  const auto copy_queries = [&](int turn) {
    const int head = place.head + turn / num_tiles;
    const int query = (first_tile + turn % num_tiles) * kAttentionQueries;
    const int num_valid = params.seq - query;
    CopyTile<kAttentionQueries>(
        queries_tile(turn % 2),
        RowsFrom(place.Of<kHeadDim>(params.q, head), params.q.stride, query), params.q.stride,
        num_valid);
    CopyTile<kAttentionQueries>(
        queries_tile(2 + turn % 2),
        RowsFrom(place.Of<kHeadDim>(params.d_out, head), params.d_out.stride, query),
        params.d_out.stride, num_valid);
    if (ThreadIndex() < 2 * kAttentionQueries) {
      const int i = ThreadIndex() % kAttentionQueries;
      const float* const all =
          ThreadIndex() < kAttentionQueries ? params.log_sum_exp : params.delta;
      statistics(turn)[ThreadIndex()] =
          i < num_valid ? place.Statistics(all, params, head)[query + i] : 0.0f;
    }
  };

  CopyTile<kAttentionRows>(
      k_tile, RowsFrom(place.Of<kHeadDim>(params.k, place.key_head), params.k.stride, first_key),
      params.k.stride, params.seq - first_key);
  CopyTile<kAttentionRows>(
      v_tile, RowsFrom(place.Of<kHeadDim>(params.v, place.key_head), params.v.stride, first_key),
      params.v.stride, params.seq - first_key);
  copy_queries(0);
  CommitCopies();

  const int row = Warp() * 16;
  float d_k[kHeadDim / 8][4] = {}, d_v[kHeadDim / 8][4] = {};
  for (int turn = 0; turn < num_turns; ++turn) {
    if (turn + 1 < num_turns) copy_queries(turn + 1);
    CommitCopies();
    WaitCopies<1>();
    SyncThreads();
    const Tile<kHeadDim> q_tile = queries_tile(turn % 2), d_out_tile = queries_tile(2 + turn % 2);
    const int first_query = (first_tile + turn % num_tiles) * kAttentionQueries;
    float p[kAttentionQueries / 8][4] = {}, ds[kAttentionQueries / 8][4] = {};
    MultiplyByTransposed<kAttentionQueries>(p, k_tile, row, q_tile);
    MultiplyByTransposed<kAttentionQueries>(ds, v_tile, row, d_out_tile);
    MEGASCALE_UNROLL
    for (int n = 0; n < kAttentionQueries / 8; ++n) {
      MEGASCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int col = ColOf(n, i);
        const float lse = statistics(turn)[col], delta = statistics(turn)[kAttentionQueries + col];
        const int query = first_query + col, key = first_key + row + RowOf(i);
        const bool is_seen =
            key <= query && query < params.seq && key >= FirstKey(params, place.first_token, query);
        p[n][i] = is_seen ? Exp(p[n][i] * params.scale - lse) : 0;
        ds[n][i] = p[n][i] * (ds[n][i] - delta) * params.scale;
      }
    }
    uint32_t factors[kAttentionQueries / 16][4];
    RoundToA<kAttentionQueries>(factors, p);
    MultiplyByTile<kAttentionQueries>(d_v, factors, d_out_tile);
    RoundToA<kAttentionQueries>(factors, ds);
    MultiplyByTile<kAttentionQueries>(d_k, factors, q_tile);
    SyncThreads();  // the next turn copies over these queries
  }
  WaitCopies<0>();
  const int num_valid = params.seq - first_key;
  WriteRows<kHeadDim>(
      place.Of<kHeadDim>(params.d_k, place.key_head) + first_key * params.d_k.stride,
      params.d_k.stride, row, num_valid, d_k, {1.0f, 1.0f});
  WriteRows<kHeadDim>(
      place.Of<kHeadDim>(params.d_v, place.key_head) + first_key * params.d_v.stride,
      params.d_v.stride, row, num_valid, d_v, {1.0f, 1.0f});
}

}  // namespace

// Grid: [tiles of queries, H, B].
MEGASCALE_KERNEL(AttentionBackwardQueries64, AttentionParams, kAttentionThreads) {
  BackwardQueries<64>(params);
}
MEGASCALE_KERNEL(AttentionBackwardQueries128, AttentionParams, kAttentionThreads) {
  BackwardQueries<128>(params);
}
// Grid: [tiles of keys, K, B].
MEGASCALE_KERNEL(AttentionBackwardKeys64, AttentionParams, kAttentionThreads) {
  BackwardKeys<64>(params);
}
MEGASCALE_KERNEL(AttentionBackwardKeys128, AttentionParams, kAttentionThreads) {
  BackwardKeys<128>(params);
}

}  // namespace megascale::kernels
