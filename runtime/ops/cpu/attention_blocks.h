// Attention in bf16 with the processor's own bf16 products: on matrix tiles (AMX), or without them
// on vectors (AVX512-BF16). The operator, `scratch` and `groups` are as in kernels.h. Probabilities
// and their gradients are rounded to bf16 for the products; scores, softmax and all sums are fp32.
#pragma once

#include <cstdint>

#include "runtime/ops/cpu/kernels.h"

namespace megascale::ops::cpu {

// All functions require MultipliesBFloat16() (matmul.h).
int64_t BlockAttentionScratchSize(const AttentionArgs& args);
int64_t BlockAttentionBackwardScratchSize(const AttentionArgs& args);
void BlockAttention(const AttentionArgs& args, float* scratch, Range groups);
void BlockAttentionBackward(const AttentionBackwardArgs& args, float* scratch, Range groups);

}  // namespace megascale::ops::cpu
