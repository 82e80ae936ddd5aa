// What launch functions need to know about rows: whether kernels may move 16 bytes of a row at
// once, and how many blocks a row takes. Private to gpu/ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "gpu/kernels/rows_params.h"
#include "gpu/ops/launcher.h"
#include "runtime/base/check.h"
#include "runtime/tensor/tensor.h"

namespace megascale::gpu {

constexpr int kPackBytes = 16;

inline int64_t PackOf(tensor::DType dtype) {
  return kPackBytes / static_cast<int64_t>(tensor::SizeOf(dtype));
}
inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int ToGridSize(int64_t blocks) {
  MEGASCALE_CHECK(blocks <= std::numeric_limits<int32_t>::max());
  return static_cast<int>(blocks);
}

inline kernels::Rows RowsOf(const tensor::Matrix& matrix) { return {matrix.data, matrix.stride}; }
inline tensor::Matrix AsRow(const tensor::Vector& vector) {
  return {vector.data, vector.dtype, 1, vector.size, vector.size};
}

// A tensor that is absent is aligned.
inline bool IsAligned(const tensor::Matrix& matrix) {
  return reinterpret_cast<uintptr_t>(matrix.data) % kPackBytes == 0 &&
         (matrix.rows <= 1 || matrix.stride % PackOf(matrix.dtype) == 0);
}
inline bool IsAligned(const tensor::Vector& vector) { return IsAligned(AsRow(vector)); }
inline bool AreAligned(std::initializer_list<tensor::Matrix> matrices) {
  return std::all_of(matrices.begin(), matrices.end(),
                     [](const tensor::Matrix& matrix) { return IsAligned(matrix); });
}

// Views matrices of one shape as single rows if no row of any of them is followed by a gap.
inline void JoinRows(std::initializer_list<tensor::Matrix*> matrices) {
  for (const tensor::Matrix* matrix : matrices) {
    if (matrix->stride != matrix->cols) return;
  }
  for (tensor::Matrix* matrix : matrices) {
    matrix->cols = matrix->stride = matrix->rows * matrix->cols;
    matrix->rows = 1;
  }
}

// A launch in which each thread owns one of `packs_of_row` packs of one of `rows` rows.
struct RowLaunch {
  LaunchShape shape;
  kernels::RowSplit split;
};
inline RowLaunch LaunchOfRows(int64_t rows, int64_t cols, int64_t packs_of_row, bool is_aligned) {
  constexpr int64_t kWarp = 32;
  const int64_t threads =
      std::clamp<int64_t>(DivideUp(packs_of_row, kWarp) * kWarp, kWarp, kernels::kRowThreads);
  const int64_t blocks_of_row = DivideUp(packs_of_row, threads);
  return {.shape = {.grid = {ToGridSize(rows * blocks_of_row), 1, 1},
                    .threads = static_cast<int>(threads)},
          .split = {cols, static_cast<int32_t>(blocks_of_row), is_aligned}};
}
// Packs of `pack` elements.
inline RowLaunch LaunchOver(const tensor::Matrix& matrix, int64_t pack, bool is_aligned) {
  return LaunchOfRows(matrix.rows, matrix.cols, DivideUp(matrix.cols, pack), is_aligned);
}

}  // namespace megascale::gpu
