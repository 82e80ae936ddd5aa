#include "runtime/ops/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace megascale::ops {
namespace {

// The part of the packed matrices that one query row of one head uses.
struct AttentionRow {
  int64_t row = 0;        // of q and out
  int64_t first_row = 0;  // of k and v: the row of position 0
  int64_t query_col = 0;
  int64_t key_col = 0;
  int64_t first_key = 0;  // position
  int64_t last_key = 0;   // position, inclusive
  int64_t statistics_index = 0;
};

template <typename Body>
void ForEachAttentionRow(const AttentionArgs& args, Body body) {
  const int64_t group = args.heads / args.kv_heads;
  for (int64_t b = 0; b < args.batch; ++b) {
    for (int64_t h = 0; h < args.heads; ++h) {
      for (int64_t t = 0; t < args.seq; ++t) {
        AttentionRow row;
        row.first_row = b * args.seq;
        row.row = row.first_row + t;
        row.query_col = h * args.head_dim;
        row.key_col = h / group * args.head_dim;
        row.first_key = args.window > 0 ? std::max<int64_t>(0, t - args.window + 1) : 0;
        if (args.document_begins) {
          const int64_t begin = args.document_begins.as<int32_t>()[row.row];
          row.first_key = std::max(row.first_key, begin);
        }
        row.last_key = t;
        row.statistics_index = (b * args.heads + h) * args.seq + t;
        body(row);
      }
    }
  }
}

double Score(const AttentionArgs& args, const AttentionRow& row, int64_t key) {
  double dot = 0;
  for (int64_t d = 0; d < args.head_dim; ++d) {
    dot +=
        At(args.q, row.row, row.query_col + d) * At(args.k, row.first_row + key, row.key_col + d);
  }
  return dot / std::sqrt(static_cast<double>(args.head_dim));
}

// Computes columns [col, col + D) of the output of token `n`.
void AttendFromCache(const CachedAttentionArgs& args, int64_t n, int64_t head) {
  const int64_t place = args.places.as<int32_t>()[n], position = place % args.capacity;
  const int64_t seen = args.window > 0 ? std::min(args.window, position + 1) : position + 1;
  const int64_t first = place + 1 - seen, col = head * args.head_dim;
  const int64_t kv_col = head / (args.heads / args.kv_heads) * args.head_dim;
  std::vector<double> weights(seen);
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < seen; ++i) {
    for (int64_t d = 0; d < args.head_dim; ++d) {
      weights[i] += At(args.q, n, col + d) * At(args.cached_k, first + i, kv_col + d);
    }
    weights[i] /= std::sqrt(static_cast<double>(args.head_dim));
    max = std::max(max, weights[i]);
  }
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (int64_t d = 0; d < args.head_dim; ++d) {
    double out = 0;
    for (int64_t i = 0; i < seen; ++i) {
      out += weights[i] / sum * At(args.cached_v, first + i, kv_col + d);
    }
    At(args.out, n, col + d) = out;
  }
}

}  // namespace

void ReferenceAttention(const AttentionArgs& args) {
  std::vector<double> weight(args.seq);
  ForEachAttentionRow(args, [&](const AttentionRow& row) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t key = row.first_key; key <= row.last_key; ++key) {
      weight[key] = Score(args, row, key);
      max = std::max(max, weight[key]);
    }
    for (int64_t key = row.first_key; key <= row.last_key; ++key) {
      weight[key] = std::exp(weight[key] - max);
      sum += weight[key];
    }
    At(args.log_sum_exp, row.statistics_index) = max + std::log(sum);
    for (int64_t d = 0; d < args.head_dim; ++d) {
      double out = 0;
      for (int64_t key = row.first_key; key <= row.last_key; ++key) {
        out += weight[key] / sum * At(args.v, row.first_row + key, row.key_col + d);
      }
      At(args.out, row.row, row.query_col + d) = out;
    }
  });
}

void ReferenceAttentionBackward(const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  const double scale = 1 / std::sqrt(static_cast<double>(forward.head_dim));
  for (const Matrix& gradient : {args.d_q, args.d_k, args.d_v}) {
    for (int64_t i = 0; i < gradient.rows; ++i) {
      for (int64_t j = 0; j < gradient.cols; ++j) At(gradient, i, j) = 0;
    }
  }
  ForEachAttentionRow(forward, [&](const AttentionRow& row) {
    double delta = 0;
    for (int64_t d = 0; d < forward.head_dim; ++d) {
      delta +=
          At(args.d_out, row.row, row.query_col + d) * At(forward.out, row.row, row.query_col + d);
    }
    for (int64_t key = row.first_key; key <= row.last_key; ++key) {
      const int64_t key_row = row.first_row + key;
      const double weight =
          std::exp(Score(forward, row, key) - At(forward.log_sum_exp, row.statistics_index));
      double d_weight = 0;
      for (int64_t d = 0; d < forward.head_dim; ++d) {
        const double d_out = At(args.d_out, row.row, row.query_col + d);
        d_weight += d_out * At(forward.v, key_row, row.key_col + d);
        At(args.d_v, key_row, row.key_col + d) += weight * d_out;
      }
      const double d_score = weight * (d_weight - delta) * scale;
      for (int64_t d = 0; d < forward.head_dim; ++d) {
        const double q = At(forward.q, row.row, row.query_col + d);
        At(args.d_q, row.row, row.query_col + d) +=
            d_score * At(forward.k, key_row, row.key_col + d);
        At(args.d_k, key_row, row.key_col + d) += d_score * q;
      }
    }
  });
}

void ReferenceCachedAttention(const CachedAttentionArgs& args) {
  for (int64_t n = 0; n < args.q.rows; ++n) {
    for (int64_t c = 0; c < args.k.cols; ++c) {
      At(args.cached_k, args.places.as<int32_t>()[n], c) = At(args.k, n, c);
      At(args.cached_v, args.places.as<int32_t>()[n], c) = At(args.v, n, c);
    }
  }
  for (int64_t n = 0; n < args.q.rows; ++n) {
    for (int64_t head = 0; head < args.heads; ++head) AttendFromCache(args, n, head);
  }
}

}  // namespace megascale::ops
