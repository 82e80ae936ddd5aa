// Attention by its definition, for reference_ops.cc. Private to this folder. Requires: arguments of
// float64 that CheckArguments accepted.
#pragma once

#include <cstdint>

#include "runtime/ops/attention.h"

namespace megascale::ops {

inline double& At(const Matrix& matrix, int64_t row, int64_t col) {
  return matrix.as<double>()[row * matrix.stride + col];
}
inline double& At(const Vector& vector, int64_t index) { return vector.as<double>()[index]; }

void ReferenceAttention(const AttentionArgs& args);
void ReferenceAttentionBackward(const AttentionBackwardArgs& args);
void ReferenceCachedAttention(const CachedAttentionArgs& args);

}  // namespace megascale::ops
