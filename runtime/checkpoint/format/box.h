// Boxes of a tensor, and flat ranges of boxes: what a slice of a checkpoint covers, and where the
// elements of one slice lie in another. A flat range counts a box's elements in row-major order; it
// is itself a few boxes, so that nothing here takes time for every element.
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megascale::checkpoint {

// Per dimension of the tensor, the elements from `offset` on, `shape` of them. A scalar has none.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;

  bool operator==(const Box&) const = default;
};

// Elements of a tensor. InvalidArgument: a negative dimension, or more than fit into an int64.
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape);

// The box that is all of a tensor.
Box WholeBox(absl::Span<const int64_t> tensor_shape);

// OK when `box` has the tensor's dimensions and leaves it in none. Errors: InvalidArgument - names
// the dimension. What follows requires boxes that passed it, of one tensor.
absl::Status CheckBox(const Box& box, absl::Span<const int64_t> tensor_shape);

// Elements [begin, begin + count) of `box` as disjoint boxes, in their order; of D dimensions at
// most 2 D - 1. Requires: the box has these elements.
std::vector<Box> BoxesOfRange(const Box& box, int64_t begin, int64_t count);

// What both have; nothing where no element is in both.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Appends what is in `from` and not in `hole`, as disjoint boxes. Requires: `hole` is within
// `from`.
void Subtract(const Box& from, const Box& hole, std::vector<Box>* rest);

// Which element of `box` the tensor's element at `place` is. Requires: it is in the box.
int64_t IndexWithin(const Box& box, absl::Span<const int64_t> place);

// Elements that follow each other in two boxes: the first one's index within each.
struct BoxRun {
  int64_t from_begin = 0;
  int64_t to_begin = 0;
  int64_t count = 0;
};
// Calls `visit` for the runs of `part`, in order, until it fails. Requires: `part` has elements and
// is within both `from` and `to`.
absl::Status ForEachRun(const Box& part, const Box& from, const Box& to,
                        absl::FunctionRef<absl::Status(const BoxRun&)> visit);

// An element of a tensor and how many boxes it is in.
struct Coverage {
  int64_t element = 0;  // row-major
  size_t num_boxes = 0;
};
// The first element of the tensor that is in no box or in several; nothing when each is in one.
// Cost: the tensor is swept along each dimension, from one edge of a box to the next: of n boxes
// that a layout makes, O(n log n).
std::optional<Coverage> FindBadCoverage(absl::Span<const int64_t> tensor_shape,
                                        absl::Span<const Box> boxes);

}  // namespace megascale::checkpoint
