// Attention in bf16 on the processor's matrix tiles (AMX): the same operator as in cpu_kernels.h,
// with the same meaning of `scratch` and `groups`. Probabilities and their gradients are rounded to
// bf16 for the products; scores, softmax and all sums are fp32.
#pragma once

#include <cstdint>

#include "runtime/ops/cpu_kernels.h"

namespace megascale::ops::cpu {

// Whether InstructionSet() names the tiles and the kernel of the machine lets this process use
// them: the functions below may be called only then.
bool HasTiles();

int64_t TileAttentionScratchSize(const AttentionArgs& args);
int64_t TileAttentionBackwardScratchSize(const AttentionArgs& args);
void TileAttention(const AttentionArgs& args, float* scratch, Range groups);
void TileAttentionBackward(const AttentionBackwardArgs& args, float* scratch, Range groups);

}  // namespace megascale::ops::cpu
