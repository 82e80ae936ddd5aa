// Argument of the kernel in fragments.cu.
#pragma once

#include <cstdint>

namespace megascale::kernels {

constexpr int kFragmentRows = 16, kFragmentCols = 64;
constexpr int kFragmentWords = 8;     // registers of a lane that hold pairs of bf16
constexpr int kFragmentNumbers = 40;  // registers of a lane that hold sums

struct ShowFragmentsParams {
  const void* a;    // [16, 64] bf16, at a multiple of 16 bytes
  const void* b;    // [16, 64] bf16, at a multiple of 16 bytes
  uint32_t* words;  // [8, 32] out: 4 of LoadMatrices, 4 of LoadMatricesTransposed, by lane
  float* numbers;   // [40, 32] out: 8 of A B^T, 32 of A[:, :16] B, by lane
};

}  // namespace megascale::kernels
