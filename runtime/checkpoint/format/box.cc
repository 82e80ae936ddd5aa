#include "runtime/checkpoint/format/box.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::checkpoint {
namespace {

int64_t EndOf(const Box& box, size_t dim) { return box.offset[dim] + box.shape[dim]; }

// Finds the first element that is not in exactly one box, dimension by dimension. Between two
// neighbouring edges along a dimension the set of boxes does not change, so one look there is
// enough.
class CoverageSweep {
 public:
  explicit CoverageSweep(absl::Span<const int64_t> tensor_shape)
      : whole_(WholeBox(tensor_shape)), place_(tensor_shape.size(), 0) {}

  // `boxes`: those that contain the element at place_[0 .. dim).
  std::optional<Coverage> Sweep(size_t dim, std::vector<const Box*> boxes) {
    if (dim == place_.size()) {
      if (boxes.size() == 1) return std::nullopt;
      return Coverage{.element = IndexWithin(whole_, place_), .num_boxes = boxes.size()};
    }
    std::sort(boxes.begin(), boxes.end(),
              [dim](const Box* a, const Box* b) { return a->offset[dim] < b->offset[dim]; });
    std::vector<const Box*> met;
    auto next = boxes.begin();
    for (int64_t at = 0; at < whole_.shape[dim];) {
      std::erase_if(met, [dim, at](const Box* box) { return EndOf(*box, dim) <= at; });
      for (; next != boxes.end() && (*next)->offset[dim] <= at; ++next) met.push_back(*next);
      place_[dim] = at;
      if (const auto bad = Sweep(dim + 1, met); bad.has_value()) return bad;
      at = next != boxes.end() ? (*next)->offset[dim] : whole_.shape[dim];
      for (const Box* box : met) at = std::min(at, EndOf(*box, dim));
    }
    return std::nullopt;
  }

 private:
  const Box whole_;
  std::vector<int64_t> place_;
};

}  // namespace

absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("absurd shape [", absl::StrJoin(shape, ", "), "]"));
    }
  }
  return elements;
}

Box WholeBox(absl::Span<const int64_t> tensor_shape) {
  return {.offset = std::vector<int64_t>(tensor_shape.size(), 0),
          .shape = {tensor_shape.begin(), tensor_shape.end()}};
}

absl::Status CheckBox(const Box& box, absl::Span<const int64_t> tensor_shape) {
  if (box.offset.size() != tensor_shape.size() || box.shape.size() != tensor_shape.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its box has ", box.offset.size(), " offsets and ", box.shape.size(),
        " sizes, expected one for each of the tensor's ", tensor_shape.size(), " dimensions"));
  }
  for (size_t dim = 0; dim < tensor_shape.size(); ++dim) {
    const int64_t offset = box.offset[dim];
    if (offset < 0 || box.shape[dim] < 0 || box.shape[dim] > tensor_shape[dim] - offset) {
      return absl::InvalidArgumentError(absl::StrCat("its box has elements ", offset, " + ",
                                                     box.shape[dim], " of dimension ", dim,
                                                     ", which has ", tensor_shape[dim]));
    }
  }
  return absl::OkStatus();
}

std::vector<Box> BoxesOfRange(const Box& box, int64_t begin, int64_t count) {
  std::vector<Box> boxes;
  if (count == 0) return boxes;
  const size_t num_dims = box.shape.size();
  if (num_dims == 0) return {box};
  std::vector<int64_t> row_elements(num_dims, 1);  // elements per index of each dimension
  for (size_t dim = num_dims - 1; dim > 0; --dim) {
    row_elements[dim - 1] = row_elements[dim] * box.shape[dim];
  }
  MEGASCALE_CHECK(begin >= 0 && begin + count <= row_elements[0] * box.shape[0]);
  const int64_t end = begin + count;
  while (begin < end) {
    // The outermost dimension in which whole rows begin here.
    size_t dim = 0;
    while (begin % row_elements[dim] != 0 || end - begin < row_elements[dim]) ++dim;
    Box part = box;
    for (size_t outer = 0; outer <= dim; ++outer) {
      part.offset[outer] += begin / row_elements[outer] % box.shape[outer];
      part.shape[outer] = 1;
    }
    const int64_t rows_left = EndOf(box, dim) - part.offset[dim];
    part.shape[dim] = std::min((end - begin) / row_elements[dim], rows_left);
    begin += part.shape[dim] * row_elements[dim];
    boxes.push_back(std::move(part));
  }
  return boxes;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.offset.size(); ++dim) {
    if (std::max(a.offset[dim], b.offset[dim]) >= std::min(EndOf(a, dim), EndOf(b, dim))) {
      return std::nullopt;
    }
  }
  Box both = a;
  for (size_t dim = 0; dim < a.offset.size(); ++dim) {
    both.offset[dim] = std::max(a.offset[dim], b.offset[dim]);
    both.shape[dim] = std::min(EndOf(a, dim), EndOf(b, dim)) - both.offset[dim];
  }
  return both;
}

void Subtract(const Box& from, const Box& hole, std::vector<Box>* rest) {
  Box left = from;  // narrowed to the hole, one dimension after the other
  for (size_t dim = 0; dim < from.offset.size(); ++dim) {
    const auto append = [&](int64_t begin, int64_t end) {
      if (begin == end) return;
      rest->push_back(left);
      rest->back().offset[dim] = begin;
      rest->back().shape[dim] = end - begin;
    };
    append(from.offset[dim], hole.offset[dim]);
    append(EndOf(hole, dim), EndOf(from, dim));
    left.offset[dim] = hole.offset[dim];
    left.shape[dim] = hole.shape[dim];
  }
}

int64_t IndexWithin(const Box& box, absl::Span<const int64_t> place) {
  int64_t index = 0;
  for (size_t dim = 0; dim < box.shape.size(); ++dim) {
    index = index * box.shape[dim] + place[dim] - box.offset[dim];
  }
  return index;
}

absl::Status ForEachRun(const Box& part, const Box& from, const Box& to,
                        absl::FunctionRef<absl::Status(const BoxRun&)> visit) {
  // Dimensions after `split` are complete in both boxes, so a row of `part` is contiguous in both.
  size_t split = part.shape.size();
  int64_t row_elements = 1;
  while (split > 0) {
    --split;
    row_elements *= part.shape[split];
    if (part.shape[split] != from.shape[split] || part.shape[split] != to.shape[split]) break;
  }
  std::vector<int64_t> place = part.offset;
  while (true) {
    RETURN_IF_ERROR(visit({.from_begin = IndexWithin(from, place),
                           .to_begin = IndexWithin(to, place),
                           .count = row_elements}));
    size_t dim = split;  // next row: counts up, innermost dimension first
    while (dim > 0 && ++place[dim - 1] == EndOf(part, dim - 1)) {
      place[dim - 1] = part.offset[dim - 1];
      --dim;
    }
    if (dim == 0) return absl::OkStatus();
  }
}

std::optional<Coverage> FindBadCoverage(absl::Span<const int64_t> tensor_shape,
                                        absl::Span<const Box> boxes) {
  std::vector<const Box*> all;
  for (const Box& box : boxes) {
    if (std::find(box.shape.begin(), box.shape.end(), 0) == box.shape.end()) all.push_back(&box);
  }
  return CoverageSweep(tensor_shape).Sweep(0, std::move(all));
}

}  // namespace megascale::checkpoint
