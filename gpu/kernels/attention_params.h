// The argument of the kernels of attention. Legend: B batch, T sequence, N = B*T tokens, H query
// heads, K key/value heads, D head size.
#pragma once

#include <cstdint>

namespace megascale::kernels {

// A matrix [N, heads * D] of bf16 or fp32, rows `stride` elements apart.
struct AttentionMatrix {
  void* data;
  int64_t stride;
};

struct AttentionParams {
  AttentionMatrix q, k, v, out;   // forward: `out` is written
  float* log_sum_exp;             // [B, H, T], natural logarithm; forward: written
  AttentionMatrix d_out;          // the rest: backward only
  AttentionMatrix d_q, d_k, d_v;  // written
  float* delta;                   // [B, H, T]: d_out . out of each row
  // [B, T] or null: the position at which each query's document begins. The query sees no key
  // before it. The position does not decrease within a sequence.
  const int32_t* document_begins;
  int32_t seq, heads, kv_heads, head_dim;
  int32_t window;  // a query at t sees keys in (t - window, t]; 0: all keys up to t
  float scale;     // of the scores: 1 / sqrt(D)
};

// The tiles of one block of the kernels on tensor cores.
constexpr int kAttentionThreads = 128;
constexpr int kAttentionRows = 64;  // query rows of a block, or key rows in AttentionBackwardKeys
constexpr int kAttentionKeys = 64;  // keys of a tile that forward reads
constexpr int kAttentionBackwardKeys = 32;  // keys of a tile that AttentionBackwardQueries reads
constexpr int kAttentionQueries = 32;       // queries of a tile that AttentionBackwardKeys reads

// Shared memory of a block, in bytes, for D elements of a head.
constexpr int AttentionForwardBytes(int head_dim) {
  return 2 * head_dim * (kAttentionRows + 4 * kAttentionKeys);  // q; k and v twice
}
constexpr int AttentionQueriesBytes(int head_dim) {
  return 2 * head_dim * (2 * kAttentionRows + 4 * kAttentionBackwardKeys);  // q, d_out; k, v twice
}
constexpr int AttentionKeysBytes(int head_dim) {
  // k, v; q and d_out twice; log_sum_exp and delta twice
  return 2 * head_dim * (2 * kAttentionRows + 4 * kAttentionQueries) + 16 * kAttentionQueries;
}

// The kernels for any head size: a warp for each row.
constexpr int kPlainAttentionThreads = 128;
constexpr int kPlainHeadDimMax = 256;

}  // namespace megascale::kernels
