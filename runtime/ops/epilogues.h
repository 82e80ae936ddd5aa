// The epilogues of products (ops.h, MatMulArgs), for an Ops that computes the product first and
// them afterwards.
#pragma once

#include "runtime/ops/ops.h"

namespace megascale::ops {

// Returns the product alone.
MatMulArgs WithoutEpilogues(MatMulArgs args);

// Calls the operators of `ops` that the epilogues of a product stand for, in the order of the
// fields. The product itself must have been computed.
void RunEpilogues(const MatMulArgs& args, Ops* ops);

}  // namespace megascale::ops
