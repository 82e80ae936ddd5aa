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
// An epilogue is an operator that needs the product, or reads its operand anyway: a device may
// compute it together with the product, and then round once where two operators round twice. At
// most one of them is set.
struct MatMulArgs {
  Matrix a;  // [m, k], or [k, m] when transposed
  Matrix b;  // [k, n], or [n, k] when transposed
  Matrix c;  // [m, n]
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  bool accumulate = false;  // add to c instead of overwriting it; not with bias
  Vector bias;              // [n] in compute, added to each row; or empty
  // For generation: m is at most kFewRows, so that reading `b` is what costs, and each row of c has
  // the same bits whatever the other rows are. Requires: only b is transposed; not `accumulate`.
  bool few_rows = false;

  // Epilogue: `activated` receives Activation of c, which keeps the activation's input for the
  // backward pass. Like ActivationArgs::out; or empty. c in compute; not with `accumulate`.
  ActivationKind activation = ActivationKind::kGeluTanh;
  Matrix activated = {};
  // Epilogue: the product is the gradient of an activation's output, and `d_activation_in` receives
  // that of its input, by ActivationBackward at `activation_in`. c is scratch: its content
  // afterwards is not specified. c in compute; not with `accumulate`.
  Matrix activation_in = {};
  Matrix d_activation_in = {};  // or empty
  // Epilogue of a weight gradient, whose `a` is transposed: AddColumnSums(a, d_bias), the gradient
  // of the bias.
  Vector d_bias = {};  // [m] F: accumulated into; or empty
};

}  // namespace megascale::ops
