// The epilogues of products (product.h, MatMulArgs), for an Ops that computes them separately after
// the product.
#pragma once

#include "runtime/ops/ops.h"

namespace megascale::ops {

// Returns the product alone.
MatMulArgs WithoutEpilogues(MatMulArgs args);

// Calls the operators of `ops` that compute the product's epilogues, in the order of the fields.
// Requires: the product itself has been computed.
void RunEpilogues(const MatMulArgs& args, Ops* ops);

}  // namespace megascale::ops
