// The arguments of attention: over whole sequences, with its backward, and over a cache of keys and
// values, for generation. Legend and dtypes: ops.h.
#pragma once

#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace megascale::ops {

using tensor::Matrix;
using tensor::Vector;

// Causal scaled-dot-product attention (scale 1/sqrt(D)). A query at t sees keys in (t - window, t],
// or all keys up to t if window is 0. q, k, v may be column ranges of one packed matrix; their
// strides allow for it. Memory is linear in T.
//
// With `document_begins`, row n sees no key before position document_begins[n] of its sequence,
// where its document begins. Requires: document_begins[n] is at most the row's own position, and
// never decreases within a sequence.
struct AttentionArgs {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  Matrix q;                     // [N, H*D]
  Matrix k;                     // [N, K*D]
  Matrix v;                     // [N, K*D]
  Matrix out;                   // [N, H*D]
  Vector log_sum_exp;           // [B, H, T] F out: kept for backward
  Vector document_begins = {};  // [N] I32, or empty
};

struct AttentionBackwardArgs {
  AttentionArgs forward;  // with out and log_sum_exp as forward left them
  Matrix d_out;           // [N, H*D]
  Matrix d_q, d_k, d_v;   // like q, k, v: overwritten
};

// Causal attention of new tokens of some sequences, whose earlier tokens left their keys and values
// in a cache. The cache has `capacity` rows for each sequence. Token n belongs in row places[n] =
// sequence * capacity + position. First the new keys and values are copied to these rows of the
// cache. Then each query sees the keys of its sequence at positions in (position - window,
// position], or all keys up to its own position if window is 0. Several tokens may belong to one
// sequence. The bits of a row do not depend on the other rows.
struct CachedAttentionArgs {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0, capacity = 0;
  Vector places = {};    // [N] I32, all different
  Matrix q = {};         // [N, H*D]
  Matrix k = {};         // [N, K*D]
  Matrix v = {};         // [N, K*D]
  Matrix cached_k = {};  // [S * capacity, K*D] for S sequences
  Matrix cached_v = {};  // [S * capacity, K*D]
  Matrix out = {};       // [N, H*D]
};

}  // namespace megascale::ops
