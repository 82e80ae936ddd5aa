// The arguments of Ops::MatMul: a product of matrices, and the operators around it that a device
// may compute in the same launch. Legend and dtypes: ops.h.
#pragma once

#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace megascale::ops {

using tensor::Matrix;
using tensor::Vector;

enum class Transpose : uint8_t { kNo, kYes };
enum class ActivationKind : uint8_t { kGelu, kGeluTanh, kSwiGlu };

inline constexpr int64_t kFewRows = 32;

// c (+)= op(a) op(b) [+ bias]. a, b in compute; c in compute or F.
//
// An epilogue is an operator that reads the product's result or operand anyway. A device may
// compute it together with the product, and then rounds once where two operators round twice. At
// most one epilogue is set.
struct MatMulArgs {
  Matrix a;  // [m, k], or [k, m] when transposed
  Matrix b;  // [k, n], or [n, k] when transposed
  Matrix c;  // [m, n]
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  bool accumulate = false;  // add to c instead of overwriting it; not with bias
  Vector bias;              // [n] in compute, added to each row; or empty
  // For generation. Most of the time goes into reading `b`, and the bits of a row of c do not
  // depend on the other rows. Requires: m is at most kFewRows; a is not transposed, b is; not
  // `accumulate`.
  bool few_rows = false;

  // Epilogue: `activated` receives Activation of c; c keeps the activation's input for the backward
  // pass. `activated` is like ActivationArgs::out, or empty. Requires: c in compute; not
  // `accumulate`.
  ActivationKind activation = ActivationKind::kGeluTanh;
  Matrix activated = {};
  // Epilogue: the product is the gradient of an activation's output, and `d_activation_in` receives
  // the gradient of the activation's input, by ActivationBackward at `activation_in`. c is scratch
  // memory, whose content afterwards is not specified. Requires: c in compute; not `accumulate`.
  Matrix activation_in = {};
  Matrix d_activation_in = {};  // or empty
  // Epilogue of a weight gradient, whose `a` is transposed: AddColumnSums(a, d_bias), the gradient
  // of the bias.
  Vector d_bias = {};  // [m] F: accumulated into; or empty
};

}  // namespace megascale::ops
