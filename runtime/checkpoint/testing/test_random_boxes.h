// Random tensors and boxes, and the elements of a box found by counting, for property tests.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "runtime/checkpoint/format/box.h"

namespace megascale::checkpoint {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // Returns a number in [0, limit).
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit));
  }

  // Returns up to four dimensions of 1 to 7.
  std::vector<int64_t> Shape() {
    std::vector<int64_t> shape(static_cast<size_t>(Below(5)));
    for (int64_t& size : shape) size = 1 + Below(7);
    return shape;
  }

  // Returns a part of `box` that is not empty; in a third of the dimensions the whole.
  Box Part(const Box& box) {
    Box part = box;
    for (size_t dim = 0; dim < box.shape.size(); ++dim) {
      if (Below(3) == 0) continue;
      const int64_t begin = Below(box.shape[dim]);
      part.offset[dim] += begin;
      part.shape[dim] = 1 + Below(box.shape[dim] - begin);
    }
    return part;
  }

  // Cuts a box into disjoint boxes; each cut splits one of the boxes in two along a dimension.
  std::vector<Box> Pieces(const Box& box, int num_cuts) {
    std::vector<Box> pieces = {box};
    for (int cut = 0; cut < num_cuts && !box.shape.empty(); ++cut) {
      Box& cut_one = pieces[static_cast<size_t>(Below(static_cast<int64_t>(pieces.size())))];
      const auto dim = static_cast<size_t>(Below(static_cast<int64_t>(box.shape.size())));
      if (cut_one.shape[dim] < 2) continue;
      const int64_t first = 1 + Below(cut_one.shape[dim] - 1);
      Box rest = cut_one;
      rest.offset[dim] += first;
      rest.shape[dim] -= first;
      cut_one.shape[dim] = first;
      pieces.push_back(std::move(rest));
    }
    return pieces;
  }

 private:
  std::mt19937 engine_;
};

inline int64_t CountOf(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Returns the box's elements in its order, as row-major indices into the tensor.
inline std::vector<int64_t> ElementsOf(const Box& box, const std::vector<int64_t>& tensor_shape) {
  std::vector<int64_t> elements;
  for (int64_t index = 0; index < CountOf(box.shape); ++index) {
    int64_t rest = index, element = 0, stride = 1;
    for (size_t dim = box.shape.size(); dim-- > 0;) {
      element += (box.offset[dim] + rest % box.shape[dim]) * stride;
      rest /= box.shape[dim];
      stride *= tensor_shape[dim];
    }
    elements.push_back(element);
  }
  return elements;
}

}  // namespace megascale::checkpoint
