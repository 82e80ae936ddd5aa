// The order in which the host adds up n numbers, whoever carries them: a binary tree by index. The
// left half of a node's numbers has the greatest power of two below their count, and a node is left
// + right:
//
//   5 numbers: ((x0 + x1) + (x2 + x3)) + x4
//
// So a member that carries numbers i to j of an aligned power of two can add these up alone, and
// the bits of the sum do not depend on how many members there are.
#pragma once

#include <bit>
#include <cstdint>

namespace megascale::tensor {

// Returns value(first) + … + value(first + count - 1). Requires: count >= 1.
template <typename Value>
auto SumTree(int64_t first, int64_t count, const Value& value) -> decltype(value(first)) {
  if (count == 1) return value(first);
  const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1)));
  return SumTree(first, left, value) + SumTree(first + left, count - left, value);
}

}  // namespace megascale::tensor
