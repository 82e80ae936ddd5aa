// The arguments of the kernels of elementwise.cu. Element types follow from the kernel's name.
#pragma once

#include <cstdint>

#include "gpu/kernels/rows_params.h"

namespace megascale::kernels {

// out = a + b
struct AddParams {
  Rows a, b, out;
  RowSplit split;
};

// out += factor * x
struct AddScaledParams {
  const float* x;
  float* out;
  float factor;
  RowSplit split;
};

// `split` divides `out`, [N, I]. With SwiGLU, `in` is [N, 2I]: the gate, then up.
struct ActivationParams {
  Rows in, out;
  RowSplit split;
};
struct ActivationBackwardParams {
  Rows in, d_out, d_in;
  RowSplit split;
};

struct RotaryTableParams {
  float* table;  // [positions, half, 2]: cosine and sine; written
  int32_t positions, half;
  double log2_theta;
  double sign;                                                             // -1 turns back
  double factor, kept_at_0, kept_per_pair, kept_per_frequency, amplitude;  // ops::RotaryScaling
};
struct RotaryParams {
  Rows x;  // [N, heads * head_dim]
  const float* table;
  int32_t seq, heads, head_dim, half;  // pairs (i, i + half) of each head are turned
  RowSplit split;                      // of packs of pairs
};

enum class ElementType : int32_t { kF64, kF32, kBF16, kI32 };

struct CastParams {
  const void* from;
  void* to;
  RowSplit split;
  ElementType from_type, to_type;  // CastAny only
};

}  // namespace megascale::kernels
