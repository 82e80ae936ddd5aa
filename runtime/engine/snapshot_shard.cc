#include "runtime/engine/snapshot_shard.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

// One tensor's part needs a key of its own in the file: the tensor's name.
checkpoint::v1::TensorSlice SliceOf(const optim::StateSlice& state) {
  checkpoint::v1::TensorSlice slice;
  slice.set_name(state.name);
  slice.set_key(state.name);
  const absl::string_view dtype = tensor::Name(state.data.dtype);
  slice.set_dtype(std::string(dtype.data(), dtype.size()));
  for (const int64_t size : state.shape) slice.add_global_shape(size);
  slice.set_flat_begin(state.begin);
  slice.set_flat_count(state.data.size);
  return slice;
}

absl::Status ReadState(checkpoint::CheckpointReader* reader, optim::ShardedAdamW* optimizer) {
  for (const optim::StateSlice& state : optimizer->State()) {
    const auto count = static_cast<size_t>(state.data.size);
    if (state.data.dtype == tensor::DType::kF64) {
      RETURN_IF_ERROR(reader->ReadSlice(state.name, state.begin,
                                        absl::MakeSpan(state.data.as<double>(), count)));
    } else {
      RETURN_IF_ERROR(reader->ReadSlice(state.name, state.begin,
                                        absl::MakeSpan(state.data.as<float>(), count)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<checkpoint::ShardLayout> LayoutOf(int rank,
                                                 const std::vector<optim::StateSlice>& state) {
  std::vector<checkpoint::v1::TensorSlice> slices;
  slices.reserve(state.size());
  for (const optim::StateSlice& part : state) slices.push_back(SliceOf(part));
  return checkpoint::ShardLayout::Create(rank, std::move(slices));
}

void CopyStateOut(const checkpoint::ShardLayout& layout, const optim::ShardedAdamW& optimizer,
                  const checkpoint::ShardMoment& moment, absl::Span<std::byte> payload) {
  layout.WriteHeader(moment, payload);
  const std::vector<optim::StateSlice> states = optimizer.State();
  MEGASCALE_CHECK(states.size() == layout.slices().size());
  for (size_t i = 0; i < states.size(); ++i) {
    const tensor::Vector& data = states[i].data;
    std::memcpy(payload.data() + layout.data_offset(i), data.data,
                static_cast<size_t>(data.size) * tensor::SizeOf(data.dtype));
  }
}

absl::Status RestoreState(const RestorePoint& restore, const base::SharedMemory* snapshots,
                          optim::ShardedAdamW* optimizer) {
  if (restore.source() == RestorePoint::SOURCE_MEMORY) {
    ASSIGN_OR_RETURN(const auto snapshot, checkpoint::SnapshotReader::Open(snapshots));
    ASSIGN_OR_RETURN(const absl::string_view payload, snapshot.Read(restore.step()));
    ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::OpenSnapshot(payload));
    return ReadState(reader.get(), optimizer);
  }
  ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(restore.directory()));
  if (reader->manifest().step() != restore.step()) {
    return absl::DataLossError(absl::StrCat(restore.directory(), ": holds step ",
                                            reader->manifest().step(), ", expected step ",
                                            restore.step()));
  }
  return ReadState(reader.get(), optimizer);
}

}  // namespace megascale::engine
