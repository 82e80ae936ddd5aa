// Attention in bf16 on the processor's own products of bf16, matrix tiles (AMX) or else vectors
// (AVX512-BF16): the same operator as in cpu_kernels.h, with the same meaning of `scratch` and
// `groups`. Probabilities and their gradients are rounded to bf16 for the products; scores, softmax
// and all sums are fp32.
#pragma once

#include <cstdint>

#include "runtime/ops/cpu_kernels.h"

namespace megascale::ops::cpu {

// All may be called only where MultipliesBFloat16() (cpu_matmul.h).
int64_t BlockAttentionScratchSize(const AttentionArgs& args);
int64_t BlockAttentionBackwardScratchSize(const AttentionArgs& args);
void BlockAttention(const AttentionArgs& args, float* scratch, Range groups);
void BlockAttentionBackward(const AttentionBackwardArgs& args, float* scratch, Range groups);

}  // namespace megascale::ops::cpu
