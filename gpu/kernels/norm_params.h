// The arguments of the kernels of norm.cu. Element types follow from the kernel's name. Legend: N
// rows, C columns.
#pragma once

#include <cstdint>

#include "gpu/kernels/rows_params.h"

namespace megascale::kernels {

// Elements of a row that a thread keeps in registers.
constexpr int kNormElements = 32;
constexpr int kNormThreadsMax = 512;
constexpr int kNormColumnsMax = kNormThreadsMax * kNormElements;
// Rows of a block if a row takes one warp. A row that takes several warps has a block of its own.
constexpr int kNormRowsOfBlock = 4;

struct NormParams {
  Rows x, delta, sum, out;  // [N, C]; delta and sum may be null
  const void* weight;       // [C]
  const void* bias;         // [C] or null
  float* mean;              // [N], or null: RMSNorm
  float* rstd;              // [N]
  int32_t rows, cols;
  int32_t warps_of_row;
  float eps;
  bool is_aligned;  // rows are whole packs of 16 bytes, at multiples of 16
};

struct NormBackwardParams {
  Rows x, d_out, d_x;  // [N, C]
  const void* weight;  // [C]
  const float* mean;   // [N], or null: RMSNorm
  const float* rstd;   // [N]
  float* partials;     // [2, blocks, C]: each block's sums for d_weight, then for d_bias
  int32_t rows, cols;
  int32_t warps_of_row;
  int32_t rows_of_block;
  bool is_aligned;  // as above
};

// Shared memory of a block of NormForward. NormBackward has the same at the beginning of its shared
// memory.
constexpr int kNormScratchFloats = 4 * kNormThreadsMax / 32;
// Shared memory of a block of NormBackward for elements of `element_bytes` bytes. It holds a row of
// x and of d_out, and later kNormElements sums of each thread.
constexpr int NormBackwardBytes(int threads, int element_bytes) {
  return static_cast<int>(sizeof(float)) * kNormScratchFloats +
         2 * kNormElements * element_bytes * threads;
}

struct ColumnSumsParams {
  Rows x;           // [N, C]
  float* partials;  // [blocks of rows, C]
  int32_t rows, cols;
  int32_t rows_of_block;
  bool is_aligned;
};
constexpr int kColumnSumsThreads = 256;

struct FoldParams {
  const float* partials;  // [outputs, parts, C]
  float* out[2];          // [C]: added to
  int32_t parts, cols;
};
constexpr int kFoldThreads = 512;

}  // namespace megascale::kernels
