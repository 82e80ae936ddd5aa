// Arguments of the kernels in cross_entropy.cu.
#pragma once

#include <cstdint>

namespace megascale::kernels {

// Rows of logits with their targets: columns are the tokens from `first_token` on.
struct LogitRows {
  void* logits;  // [rows, cols], rows `stride` elements apart
  int64_t rows, stride;
  int32_t cols;
  bool is_aligned;         // `logits` at a multiple of 16 bytes
  const int32_t* targets;  // [rows]
  int64_t first_token;
};

struct LogitStatisticsParams {
  LogitRows rows;
  float* statistics;  // [3, rows] out: greatest logit, sum of powers, target's logit
};

struct CrossEntropyParams {
  LogitRows rows;
  bool backward;
  double gradient_scale;
  double* losses;  // [rows] out
};

struct CombineStatisticsParams {
  const float* statistics;  // [num_parts, 3, rows]
  const int32_t* targets;   // [rows]
  int64_t rows;
  int32_t num_parts;
  int64_t vocab_size;
  double* losses;   // [rows] out
  double* sums;     // [rows] out
  float* greatest;  // [rows] out
};

struct GradientOfPartParams {
  LogitRows rows;
  double gradient_scale;
  const double* sums;     // [rows], of the whole vocabulary
  const float* greatest;  // [rows]
};

}  // namespace megascale::kernels
