// A product as the emulated cuBLASLt reads it from descriptors, and the computation of the product.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace megascale::emulator {

struct CublasLtOperand {
  int32_t type = 0;
  bool is_transposed = false;                // op() transposes
  int64_t rows = 0, cols = 0, distance = 0;  // as stored, column-major

  size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  uint64_t distance_bytes() const { return static_cast<uint64_t>(distance) * element_bytes(); }
};

// The function that is applied to a sum, after the bias, before the sum is stored in D.
enum class CublasLtActivation : uint8_t {
  kNone,
  kGelu,          // by tanh; its input goes to aux
  kGeluGradient,  // times the slope of GELU at aux
};

// D [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C [+ bias], then the activation.
struct CublasLtProblem {
  int64_t m = 0, n = 0, k = 0;
  int32_t compute_type = 0;
  CublasLtOperand a, b, c, d;
  bool has_bias = false;
  const void* bias = nullptr;  // [m], of the type of D
  bool has_bias_gradient = false;
  void* bias_gradient = nullptr;  // [n], of the type of D: overwritten with the sum of op(B) over k
  CublasLtActivation activation = CublasLtActivation::kNone;
  void* aux = nullptr;  // [m, n], of the type of D, column-major
  int64_t aux_distance = 0;

  // What a call passes in addition to its descriptors.
  float alpha = 1, beta = 0;
  const void* a_data = nullptr;
  const void* b_data = nullptr;
  const void* c_data = nullptr;  // read if beta is not 0
  void* d_data = nullptr;
};

// Computes in float64 and rounds once to the type of D. With TF32 the operands are rounded to TF32
// first. Addresses are those of the device (Translate).
void ComputeProduct(const CublasLtProblem& problem);

}  // namespace megascale::emulator
