// Adds up the elements of several ranks, in the order of tensor::SumTree
// (runtime/tensor/sum_tree.h) over the ranks of the group.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "runtime/tensor/tensor.h"

namespace megascale::comm {

// Computes output[k] = (sources[0][k] + sources[1][k]) + (sources[2][k] + sources[3][k]) …, for k <
// num_elements. BF16 is added in fp32 and rounded once. `output` may be one of the sources.
// Requires: F32, F64 or BF16; aligned to the type; at least one source.
void FoldSum(tensor::DType dtype, absl::Span<const std::byte* const> sources, size_t num_elements,
             std::byte* output);

}  // namespace megascale::comm
