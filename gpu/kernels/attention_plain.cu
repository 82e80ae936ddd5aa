// Attention both ways for any head of at most kPlainHeadDimMax elements, in fp32 or bf16, any
// stride: what the kernels on tensor cores leave. A warp owns a row: a query, or, for the gradients
// of keys and values, a key.
//
// A warp looks at 32 rows of the other side at a time. Each lane computes the score of one of them,
// over all D elements; then the lanes share these 32 numbers, and each adds to the elements of the
// result that it owns: lane, lane + 32, …
//
// Device memory: about 6 D bytes (bf16) or 12 D bytes for each pair of rows that see each other,
// mostly from the cache. No shared memory. All sums are fp32 in the order of the rows.
#include "gpu/kernels/attention_params.h"
#include "gpu/kernels/attention_sight.h"
#include "gpu/kernels/reduce.h"

namespace megascale::kernels {
namespace {

constexpr float kLowest = -3.0e38f;
constexpr int kOwnedMax = kPlainHeadDimMax / kLanes;  // elements of a row that a lane owns

// The row that a warp owns: `position` of `head` in sequence `batch`.
struct PlainRow {
  int position, head, batch;
  int64_t first_token;
};

MEGASCALE_DEVICE PlainRow MyRow(const AttentionParams& params) {
  const int batch = BlockIndexZ();
  return {BlockIndex() * NumWarps() + Warp(), BlockIndexY(), batch, int64_t{batch} * params.seq};
}

// Element 0 of a head's row.
template <typename T>
MEGASCALE_DEVICE Global<T> At(const AttentionMatrix& matrix, int64_t token, int head,
                              int head_dim) {
  return Global<T>(matrix.data) + (token * matrix.stride + int64_t{head} * head_dim);
}

template <typename T>
MEGASCALE_DEVICE float Dot(const Global<T>& a, const Global<T>& b, int size) {
  float sum = 0;
  for (int i = 0; i < size; ++i) sum += ToFloat(a[i]) * ToFloat(b[i]);
  return sum;
}

// sums += the lanes' factors times their rows, first to last.
template <typename T>
MEGASCALE_DEVICE void AddRows(float (&sums)[kOwnedMax], float factor, const Global<T>& first_row,
                              int64_t stride, int num_rows, int head_dim,
                              Where where = Where::current()) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const float of_row = Shuffle(factor, lane, where);
    if (lane >= num_rows) continue;
    for (int i = 0; i < kOwnedMax; ++i) {
      const int at = i * kLanes + Lane();
      if (at < head_dim) sums[i] += of_row * ToFloat(first_row[lane * stride + at]);
    }
  }
}

template <typename T>
MEGASCALE_DEVICE void WriteRow(const Global<T>& row, const float (&sums)[kOwnedMax], float factor,
                               int head_dim) {
  for (int i = 0; i < kOwnedMax; ++i) {
    const int at = i * kLanes + Lane();
    if (at < head_dim) row[at] = FromFloat<T>(sums[i] * factor);
  }
}

MEGASCALE_DEVICE int64_t StatisticOf(const AttentionParams& params, const PlainRow& row, int head,
                                     int position) {
  return (int64_t{row.batch} * params.heads + head) * params.seq + position;
}

template <typename T>
MEGASCALE_DEVICE void PlainForward(const AttentionParams& params) {
  const PlainRow row = MyRow(params);
  if (row.position >= params.seq) return;  // the whole warp
  const int head_dim = params.head_dim, key_head = row.head / (params.heads / params.kv_heads);
  const Global<T> q = At<T>(params.q, row.first_token + row.position, row.head, head_dim);
  const int first = FirstKey(params, row.first_token, row.position);
  float greatest = kLowest, sum = 0, out[kOwnedMax] = {};
  for (int key = first; key <= row.position; key += kLanes) {
    const int num_keys = min(kLanes, row.position + 1 - key);
    float score = kLowest;
    if (Lane() < num_keys) {
      score = params.scale *
              Dot(q, At<T>(params.k, row.first_token + key + Lane(), key_head, head_dim), head_dim);
    }
    const float now = Greatest()(greatest, ReduceWarp(score, Greatest()));
    const float shrink = Exp(greatest - now);
    const float weight = Lane() < num_keys ? Exp(score - now) : 0;
    greatest = now;
    sum = sum * shrink + ReduceWarp(weight, Sum());
    for (int i = 0; i < kOwnedMax; ++i) out[i] *= shrink;
    AddRows(out, weight, At<T>(params.v, row.first_token + key, key_head, head_dim),
            params.v.stride, num_keys, head_dim);
  }
  WriteRow(At<T>(params.out, row.first_token + row.position, row.head, head_dim), out, 1.0f / sum,
           head_dim);
  if (Lane() == 0) {
    Global<float>(params.log_sum_exp)[StatisticOf(params, row, row.head, row.position)] =
        greatest + Log(sum);
  }
}

// delta = d_out . out of each row; the kernels on tensor cores read it, too.
template <typename T>
MEGASCALE_DEVICE void Delta(const AttentionParams& params) {
  const PlainRow row = MyRow(params);
  if (row.position >= params.seq) return;
  const int64_t token = row.first_token + row.position;
  const Global<T> out = At<T>(params.out, token, row.head, params.head_dim);
  const Global<T> d_out = At<T>(params.d_out, token, row.head, params.head_dim);
  float sum = 0;
  for (int i = Lane(); i < params.head_dim; i += kLanes) sum += ToFloat(out[i]) * ToFloat(d_out[i]);
  sum = ReduceWarp(sum, Sum());
  if (Lane() == 0) {
    Global<float>(params.delta)[StatisticOf(params, row, row.head, row.position)] = sum;
  }
}

template <typename T>
MEGASCALE_DEVICE void PlainQueries(const AttentionParams& params) {
  const PlainRow row = MyRow(params);
  if (row.position >= params.seq) return;
  const int head_dim = params.head_dim, key_head = row.head / (params.heads / params.kv_heads);
  const int64_t token = row.first_token + row.position;
  const Global<T> q = At<T>(params.q, token, row.head, head_dim);
  const Global<T> d_out = At<T>(params.d_out, token, row.head, head_dim);
  const int64_t statistic = StatisticOf(params, row, row.head, row.position);
  const float log_sum_exp = Global<float>(params.log_sum_exp)[statistic];
  const float delta = Global<float>(params.delta)[statistic];
  const int first = FirstKey(params, row.first_token, row.position);
  float d_q[kOwnedMax] = {};
  for (int key = first; key <= row.position; key += kLanes) {
    const int num_keys = min(kLanes, row.position + 1 - key);
    const int64_t key_token = row.first_token + key + Lane();
    float d_score = 0;
    if (Lane() < num_keys) {
      const float score =
          params.scale * Dot(q, At<T>(params.k, key_token, key_head, head_dim), head_dim);
      const float d_weight = Dot(d_out, At<T>(params.v, key_token, key_head, head_dim), head_dim);
      d_score = Exp(score - log_sum_exp) * (d_weight - delta) * params.scale;
    }
    AddRows(d_q, d_score, At<T>(params.k, row.first_token + key, key_head, head_dim),
            params.k.stride, num_keys, head_dim);
  }
  WriteRow(At<T>(params.d_q, token, row.head, head_dim), d_q, 1.0f, head_dim);
}

template <typename T>
MEGASCALE_DEVICE void PlainKeys(const AttentionParams& params) {
  const PlainRow row = MyRow(params);  // its head is a key/value head
  if (row.position >= params.seq) return;
  const int head_dim = params.head_dim, group = params.heads / params.kv_heads;
  const int64_t token = row.first_token + row.position;
  const Global<T> k = At<T>(params.k, token, row.head, head_dim);
  const Global<T> v = At<T>(params.v, token, row.head, head_dim);
  const int end = EndOfQueries(params, row.first_token, row.position);
  float d_k[kOwnedMax] = {}, d_v[kOwnedMax] = {};
  for (int head = row.head * group; head < (row.head + 1) * group; ++head) {
    for (int query = row.position; query < end; query += kLanes) {
      const int num_queries = min(kLanes, end - query);
      const int64_t query_token = row.first_token + query + Lane();
      float weight = 0, d_score = 0;
      if (Lane() < num_queries) {
        const int64_t statistic = StatisticOf(params, row, head, query + Lane());
        const float score =
            params.scale * Dot(At<T>(params.q, query_token, head, head_dim), k, head_dim);
        weight = Exp(score - Global<float>(params.log_sum_exp)[statistic]);
        const float d_weight = Dot(At<T>(params.d_out, query_token, head, head_dim), v, head_dim);
        d_score = weight * (d_weight - Global<float>(params.delta)[statistic]) * params.scale;
      }
      const int64_t first_token = row.first_token + query;
      AddRows(d_v, weight, At<T>(params.d_out, first_token, head, head_dim), params.d_out.stride,
              num_queries, head_dim);
      AddRows(d_k, d_score, At<T>(params.q, first_token, head, head_dim), params.q.stride,
              num_queries, head_dim);
    }
  }
  WriteRow(At<T>(params.d_k, token, row.head, head_dim), d_k, 1.0f, head_dim);
  WriteRow(At<T>(params.d_v, token, row.head, head_dim), d_v, 1.0f, head_dim);
}

}  // namespace

// Grids: [blocks of warps over T, H, B]; of AttentionPlainKeys…: [.., K, B].
MEGASCALE_KERNEL(AttentionPlainForwardF32, AttentionParams, kPlainAttentionThreads) {
  PlainForward<float>(params);
}
MEGASCALE_KERNEL(AttentionPlainForwardBF16, AttentionParams, kPlainAttentionThreads) {
  PlainForward<BFloat16>(params);
}
MEGASCALE_KERNEL(AttentionDeltaF32, AttentionParams, kPlainAttentionThreads) {
  Delta<float>(params);
}
MEGASCALE_KERNEL(AttentionDeltaBF16, AttentionParams, kPlainAttentionThreads) {
  Delta<BFloat16>(params);
}
MEGASCALE_KERNEL(AttentionPlainQueriesF32, AttentionParams, kPlainAttentionThreads) {
  PlainQueries<float>(params);
}
MEGASCALE_KERNEL(AttentionPlainQueriesBF16, AttentionParams, kPlainAttentionThreads) {
  PlainQueries<BFloat16>(params);
}
MEGASCALE_KERNEL(AttentionPlainKeysF32, AttentionParams, kPlainAttentionThreads) {
  PlainKeys<float>(params);
}
MEGASCALE_KERNEL(AttentionPlainKeysBF16, AttentionParams, kPlainAttentionThreads) {
  PlainKeys<BFloat16>(params);
}

}  // namespace megascale::kernels
