#include "runtime/checkpoint/format/tensor_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/format/shard.h"

namespace megascale::checkpoint {
namespace {

absl::Status CheckComplete(const LogicalTensor& tensor) {
  std::vector<Box> boxes;
  for (const TensorPiece& piece : tensor.pieces) {
    if (piece.description.replica() > 0) break;
    for (Box& box : BoxesOf(piece.description)) boxes.push_back(std::move(box));
  }
  const auto bad = FindBadCoverage(tensor.shape, boxes);
  if (!bad.has_value()) return absl::OkStatus();
  const std::string element = absl::StrCat("tensor ", tensor.name, ": element ", bad->element);
  if (bad->num_boxes == 0) {
    return absl::DataLossError(
        absl::StrCat(element, " of ", tensor.num_elements, " is in no shard"));
  }
  return absl::DataLossError(absl::StrCat(element, " is in ", bad->num_boxes, " slices"));
}

}  // namespace

absl::StatusOr<TensorIndex> TensorIndex::Create(const std::vector<const Slices*>& shards) {
  std::map<std::string, LogicalTensor> tensors;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    size_t index = 0;
    for (const v1::TensorSlice& slice : *shards[shard]) {
      const absl::Status checked = CheckSlice(slice);
      if (!checked.ok()) return absl::DataLossError(checked.message());
      LogicalTensor& tensor = tensors[slice.name()];
      const std::vector<int64_t> shape(slice.global_shape().begin(), slice.global_shape().end());
      if (tensor.name.empty()) {
        tensor.name = slice.name();
        tensor.dtype = slice.dtype();
        tensor.shape = shape;
        ASSIGN_OR_RETURN(tensor.num_elements, NumElements(shape));
      } else if (tensor.dtype != slice.dtype() || tensor.shape != shape) {
        return absl::DataLossError(
            absl::StrCat("tensor ", slice.name(), ": two shards differ in its type or shape"));
      }
      tensor.pieces.push_back({shard, index++, slice});
    }
  }
  TensorIndex result;
  for (auto& [name, tensor] : tensors) {
    std::stable_sort(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const TensorPiece& a, const TensorPiece& b) {
                       return a.description.replica() < b.description.replica();
                     });
    result.tensors_.push_back(std::move(tensor));
  }
  return result;
}

absl::StatusOr<const LogicalTensor*> TensorIndex::Find(absl::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const LogicalTensor& tensor, absl::string_view name) { return tensor.name < name; });
  if (found != tensors_.end() && found->name == name) return &*found;
  return absl::NotFoundError(absl::StrCat(
      "tensor ", name, ": is not among the ", tensors_.size(), " tensors",
      tensors_.empty() ? "" : absl::StrCat(", the first being ", tensors_.front().name)));
}

absl::Status TensorIndex::CheckComplete() const {
  for (const LogicalTensor& tensor : tensors_) {
    RETURN_IF_ERROR(checkpoint::CheckComplete(tensor));
  }
  return absl::OkStatus();
}

}  // namespace megascale::checkpoint
