// The arguments of the kernels of embedding.cu. Element types follow from the kernel's name.
// Legend: N tokens, V rows of the part of the vocabulary, T positions of a sequence, C columns.
#pragma once

#include <cstdint>

#include "gpu/kernels/rows_params.h"

namespace megascale::kernels {

struct EmbeddingParams {
  const int32_t* tokens;          // [N]
  Rows token_weight;              // [V, C]
  Rows position_weight;           // [T max, C]; its data may be null
  Rows out;                       // [N, C]
  int64_t first_token, num_rows;  // part of the vocabulary: V rows from first_token on
  int64_t seq;
  const int32_t* document_begins;  // [N], from which positions count; or null
  RowSplit split;
};

// The position of each token in its document.
struct DocumentPositionsParams {
  const int32_t* document_begins;  // [N]
  int32_t* positions;              // [N]
  int32_t num_tokens;
  int64_t seq;
};

// A sort of the tokens writes their indices, in ascending order of token, then index.
struct TokenOrderParams {
  const int32_t* tokens;   // [N]
  int32_t* sorted_tokens;  // [N]
  int32_t* order;          // [N]
  int32_t num_tokens;
  bool is_aligned;  // the address of the tokens is a multiple of 16
};
// Small blocks, so that a few thousand tokens occupy the whole device.
constexpr int kTokenOrderThreads = 64;

struct EmbeddingBackwardParams {
  const int32_t* sorted_tokens;  // [N], or null in PositionBackward
  const int32_t* order;          // [N], or null
  int32_t num_tokens;
  Rows d_out;                     // [N, C]
  Rows d_weight;                  // [V, C] or [T, C] fp32: added to
  int64_t first_token, num_rows;  // the part of the vocabulary
  int64_t seq;
  RowSplit split;
};

}  // namespace megascale::kernels
