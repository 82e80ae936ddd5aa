#include "runtime/engine/snapshot_shard.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

checkpoint::Box BoxOf(const optim::StateSlice& state) {
  return {.offset = state.box_offset, .shape = state.box_shape};
}

// A box that is its whole tensor is not spelled out.
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

// A flat range of a tensor of another shape could be read as well, and would be nonsense.
absl::Status CheckShape(const checkpoint::CheckpointReader& reader,
                        const optim::StateSlice& state) {
  const auto& tensors = reader.tensors();
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), state.name,
                       [](const auto& tensor, const auto& name) { return tensor.name < name; });
  if (found == tensors.end() || found->name != state.name || found->shape == state.shape) {
    return absl::OkStatus();  // one that is missing is told by who reads it
  }
  return absl::DataLossError(absl::StrCat(
      state.name, " has the shape [", absl::StrJoin(found->shape, ", "), "], the model wants [",
      absl::StrJoin(state.shape, ", "), "]: it is the checkpoint of another model"));
}

absl::Status ReadState(checkpoint::CheckpointReader* reader,
                       const std::vector<optim::StateSlice>& state) {
  for (const optim::StateSlice& slice : state) {
    RETURN_IF_ERROR(CheckShape(*reader, slice));
    const auto count = static_cast<size_t>(slice.data.size);
    if (slice.data.dtype == tensor::DType::kF64) {
      RETURN_IF_ERROR(reader->ReadBox(slice.name, BoxOf(slice), slice.begin,
                                      absl::MakeSpan(slice.data.as<double>(), count)));
    } else {
      RETURN_IF_ERROR(reader->ReadBox(slice.name, BoxOf(slice), slice.begin,
                                      absl::MakeSpan(slice.data.as<float>(), count)));
    }
  }
  return absl::OkStatus();
}

// A copy that is there and cannot be restored is damaged, or of another model, however that shows:
// an older one may be good. One whose directory is not there may be on storage that is away.
absl::Status AsDamage(const absl::Status& status, const std::string& directory) {
  const bool gone = absl::IsNotFound(status) && ::access(directory.c_str(), F_OK) != 0;
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return gone ? status : absl::DataLossError(status.message());
    default:
      return status;
  }
}

absl::Status RestoreFromStorage(const RestorePoint& restore,
                                const std::vector<optim::StateSlice>& state) {
  ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(restore.directory()));
  if (reader->manifest().step() != restore.step()) {
    return absl::DataLossError(absl::StrCat(restore.directory(), ": holds step ",
                                            reader->manifest().step(), ", expected step ",
                                            restore.step()));
  }
  return base::Annotate(ReadState(reader.get(), state), restore.directory());
}

}  // namespace

absl::StatusOr<checkpoint::ShardLayout> LayoutOf(int rank,
                                                 const std::vector<optim::StateSlice>& state) {
  std::vector<checkpoint::v1::TensorSlice> slices;
  slices.reserve(state.size());
  for (const optim::StateSlice& part : state) slices.push_back(SliceOf(part));
  return checkpoint::ShardLayout::Create(rank, std::move(slices));
}

void CopyStateOut(const checkpoint::ShardLayout& layout,
                  const std::vector<optim::StateSlice>& state,
                  const checkpoint::ShardMoment& moment, absl::Span<std::byte> payload) {
  layout.WriteHeader(moment, payload);
  MEGASCALE_CHECK(state.size() == layout.slices().size());
  for (size_t i = 0; i < state.size(); ++i) {
    const tensor::Vector& data = state[i].data;
    std::memcpy(payload.data() + layout.data_offset(i), data.data,
                static_cast<size_t>(data.size) * tensor::SizeOf(data.dtype));
  }
}

absl::Status RestoreState(const RestorePoint& restore, const base::SharedMemory* snapshots,
                          const std::vector<optim::StateSlice>& state) {
  if (restore.source() == RestorePoint::SOURCE_MEMORY) {
    ASSIGN_OR_RETURN(const auto snapshot, checkpoint::SnapshotReader::Open(snapshots));
    ASSIGN_OR_RETURN(const absl::string_view payload, snapshot.Read(restore.step()));
    ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::OpenSnapshot(payload));
    return ReadState(reader.get(), state);
  }
  return AsDamage(RestoreFromStorage(restore, state), restore.directory());
}

}  // namespace megascale::engine
