// Parts of the arguments of kernels: matrices, and how blocks share the rows of a matrix.
#pragma once

#include <cstdint>

namespace megascale::kernels {

// A matrix, rows `stride` elements apart.
struct Rows {
  void* data;
  int64_t stride;
};

constexpr int kRowThreads = 256;  // maximum of a block that works on a part of a row

// How blocks share the rows of a matrix: `blocks_of_row` blocks for each row, a pack of 16 bytes
// for each thread.
struct RowSplit {
  int64_t cols;
  int32_t blocks_of_row;
  bool is_aligned;  // addresses and strides of all tensors are multiples of 16 bytes
};

}  // namespace megascale::kernels
