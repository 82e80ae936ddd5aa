// Arguments of the kernels in numbers.cu.
#pragma once

#include <cstdint>

namespace megascale::kernels {

struct SumOfSquaresParams {
  const float* x;  // [size]
  int64_t size;
  bool is_aligned;   // x at a multiple of 16 bytes
  double* partials;  // [blocks] out; unused if there is one block
  double* out;       // [1]: added to if there is one block
};

struct AddPartialsParams {
  const double* partials;  // [num_partials]
  int32_t num_partials;
  double* out;  // [1]: added to
};

struct AddTotalParams {
  const double* x;  // [size]
  int64_t size;
  double* out;  // [1]: added to
};

// The result of one block.
struct NotFinite {
  int64_t index;  // row * cols + col; kNoIndex: all elements are finite
  double value;
};
constexpr int64_t kNoIndex = INT64_MAX;

struct FindNotFiniteParams {
  const void* x;  // [rows, cols], rows `stride` elements apart
  int64_t rows, cols, stride;
  bool is_aligned;   // each row at a multiple of 16 bytes
  NotFinite* found;  // [blocks] out
};

struct PickNotFiniteParams {
  const NotFinite* found;  // [num_found]
  int32_t num_found;
  double* out;  // [1]: overwritten
};

}  // namespace megascale::kernels
