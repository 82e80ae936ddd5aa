// Boxes of a tensor, and flat ranges of boxes. They describe what a slice of a checkpoint covers,
// and where its elements lie in another slice. A flat range counts a box's elements in row-major
// order. It is handled as a few boxes, so no function takes time for every element. Threads: plain
// functions.
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

// For each dimension of the tensor: `shape` elements from `offset` on. Both are empty for a scalar.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;

  bool operator==(const Box&) const = default;
};

// Returns the number of elements of a tensor. Errors: InvalidArgument - a negative dimension, or a
// number that does not fit into an int64.
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape);

// Returns the box that covers a whole tensor.
Box WholeBox(absl::Span<const int64_t> tensor_shape);

// Returns OK if `box` has the tensor's dimensions and lies within it. Errors: InvalidArgument -
// names the dimension. The functions below require boxes of one tensor that pass this check.
absl::Status CheckBox(const Box& box, absl::Span<const int64_t> tensor_shape);

// Returns elements [begin, begin + count) of `box` as disjoint boxes, in order: for D dimensions at
// most 2 D - 1. Requires: the box has these elements.
std::vector<Box> BoxesOfRange(const Box& box, int64_t begin, int64_t count);

// Returns the box of the elements that both have; nullopt if there are none.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Appends the elements of `from` that are not in `hole`, as disjoint boxes. Requires: `hole` is
// within `from`.
void Subtract(const Box& from, const Box& hole, std::vector<Box>* rest);

// Returns the index within `box` of the tensor's element at `place`. Requires: it is in the box.
int64_t IndexWithin(const Box& box, absl::Span<const int64_t> place);

// Elements that are consecutive in two boxes: the index of the first one in each.
struct BoxRun {
  int64_t from_begin = 0;
  int64_t to_begin = 0;
  int64_t count = 0;
};
// Calls `visit` for the runs of `part`, in order, until it returns an error. Requires: `part` is
// not empty and is within both `from` and `to`.
absl::Status ForEachRun(const Box& part, const Box& from, const Box& to,
                        absl::FunctionRef<absl::Status(const BoxRun&)> visit);

// An element of a tensor and the number of boxes that contain it.
struct Coverage {
  int64_t element = 0;  // row-major
  size_t num_boxes = 0;
};
// Returns the first element of the tensor that is in no box or in several; nullopt if each is in
// exactly one. Cost: it sweeps each dimension from one edge of a box to the next; O(n log n) for
// the n boxes of a layout.
std::optional<Coverage> FindBadCoverage(absl::Span<const int64_t> tensor_shape,
                                        absl::Span<const Box> boxes);

}  // namespace megascale::checkpoint
