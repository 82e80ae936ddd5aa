#include "runtime/layout/snapshot_layout.h"

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace megascale::layout {
namespace {

// Leaves out the box if it is the whole tensor.
checkpoint::v1::TensorSlice SliceOf(const optim::StateSlice& state) {
  checkpoint::v1::TensorSlice slice;
  slice.set_name(state.name);
  const absl::string_view dtype = tensor::Name(state.data.dtype);
  slice.set_dtype(std::string(dtype.data(), dtype.size()));
  slice.mutable_global_shape()->Add(state.shape.begin(), state.shape.end());
  if (state.box_shape != state.shape) {
    slice.mutable_box_offset()->Add(state.box_offset.begin(), state.box_offset.end());
    slice.mutable_box_shape()->Add(state.box_shape.begin(), state.box_shape.end());
  }
  slice.set_flat_begin(state.begin);
  slice.set_flat_count(state.data.size);
  slice.set_replica(state.replica);
  return slice;
}

}  // namespace

absl::StatusOr<checkpoint::ShardLayout> SnapshotLayoutOf(
    int rank, const std::vector<optim::StateSlice>& state) {
  std::vector<checkpoint::v1::TensorSlice> slices;
  slices.reserve(state.size());
  for (const optim::StateSlice& part : state) slices.push_back(SliceOf(part));
  return checkpoint::ShardLayout::Create(rank, std::move(slices));
}

}  // namespace megascale::layout
