// Which keys a query sees, and which queries see a key: the causal mask, the window, documents.
#pragma once

#include "gpu/kernels/attention_params.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

// Returns the first key that the query at `query` sees; the last such key is at the query's own
// position. The result does not decrease with the query. Queries beyond the sequence count as the
// sequence's last query. `first_token`: of the sequence.
MEGASCALE_DEVICE int FirstKey(const AttentionParams& params, int64_t first_token, int query) {
  const int in_window = params.window == 0 ? 0 : max(0, query - params.window + 1);
  if (params.document_begins == nullptr) return in_window;
  const Global<const int32_t> begins(params.document_begins);
  const int begin = begins[first_token + min(query, params.seq - 1)];
  return max(in_window, begin);
}

// Returns one more than the last query that sees the key at `key`, by bisection.
MEGASCALE_DEVICE int EndOfQueries(const AttentionParams& params, int64_t first_token, int key) {
  const int end = params.window == 0 ? params.seq : min(params.seq, key + params.window);
  if (params.document_begins == nullptr) return end;
  int sees = key, blind = end;
  while (blind - sees > 1) {
    const int middle = sees + (blind - sees) / 2;
    if (FirstKey(params, first_token, middle) <= key) {
      sees = middle;
    } else {
      blind = middle;
    }
  }
  return blind;
}

}  // namespace megascale::kernels
