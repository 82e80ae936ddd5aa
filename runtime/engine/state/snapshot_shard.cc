#include "runtime/engine/state/snapshot_shard.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

constexpr size_t kBlockElements = size_t{1} << 20;  // of initial weights, read at a time

checkpoint::Box BoxOf(const optim::StateSlice& state) {
  return {.offset = state.box_offset, .shape = state.box_shape};
}

bool IsWeight(const optim::StateSlice& slice) {
  return !absl::StartsWith(slice.name, optim::kMomentPrefix);
}

// Checks shapes, because a flat range of a tensor of another shape could be read, but would be
// garbage.
absl::Status CheckShape(const checkpoint::CheckpointReader& reader,
                        const optim::StateSlice& state) {
  const auto& tensors = reader.tensors();
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), state.name,
                       [](const auto& tensor, const auto& name) { return tensor.name < name; });
  if (found == tensors.end() || found->name != state.name || found->shape == state.shape) {
    return absl::OkStatus();  // the reader reports a missing tensor
  }
  return absl::DataLossError(absl::StrCat(
      state.name, " has the shape [", absl::StrJoin(found->shape, ", "), "], the model wants [",
      absl::StrJoin(state.shape, ", "), "]: it is the checkpoint of another model"));
}

absl::Status ReadSlice(checkpoint::CheckpointReader* reader, const optim::StateSlice& slice,
                       int64_t first, const tensor::HostVector& piece) {
  RETURN_IF_ERROR(CheckShape(*reader, slice));
  const auto count = static_cast<size_t>(piece.size());
  if (piece.dtype() == tensor::DType::kF64) {
    return reader->ReadBox(slice.name, BoxOf(slice), slice.begin + first,
                           absl::MakeSpan(piece.as<double>(), count));
  }
  return reader->ReadBox(slice.name, BoxOf(slice), slice.begin + first,
                         absl::MakeSpan(piece.as<float>(), count));
}

}  // namespace

absl::Status CopyStateOut(const checkpoint::ShardLayout& layout,
                          const std::vector<optim::StateSlice>& state,
                          const checkpoint::ShardMoment& moment, device::StagedCopy* copy,
                          absl::Span<std::byte> payload) {
  layout.WriteHeader(moment, payload);
  MEGASCALE_CHECK(state.size() == layout.slices().size());
  for (size_t i = 0; i < state.size(); ++i) {
    RETURN_IF_ERROR(copy->Run(state[i].data, payload.data() + layout.data_offset(i)));
  }
  return absl::OkStatus();
}

absl::Status StoredState::Open() {
  ASSIGN_OR_RETURN(reader_, checkpoint::CheckpointReader::Open(restore_.directory()));
  RETURN_IF_ERROR(checkpoint::CheckIsCommitted(reader_->manifest(), restore_));
  if (reader_->manifest().step() == restore_.step()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(restore_.directory(), ": holds step ",
                                          reader_->manifest().step(), ", expected step ",
                                          restore_.step()));
}

absl::Status StoredState::Read(const optim::StateSlice& slice, int64_t first,
                               const tensor::HostVector& piece) {
  if (reader_ == nullptr && open_status_.ok()) open_status_ = Open();
  RETURN_IF_ERROR(open_status_);
  const absl::Status status = ReadSlice(reader_.get(), slice, first, piece);
  const absl::Status annotated = base::Annotate(status, restore_.directory());
  // An open checkpoint that lacks a tensor or has another type is one that no machine can read
  // otherwise; what a system call says may differ between machines.
  return base::ErrnoOf(status) == 0 ? AsDamage(annotated) : annotated;
}

absl::Status AsDamage(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::DataLossError(status.message());
}

absl::Status RestoreState(const RestorePoint& restore, const base::SharedMemory* snapshots,
                          const std::vector<optim::StateSlice>& state, device::HostWindow* window) {
  if (restore.source() == RestorePoint::SOURCE_MEMORY) {
    ASSIGN_OR_RETURN(const auto snapshot, checkpoint::SnapshotReader::Open(snapshots));
    ASSIGN_OR_RETURN(const absl::string_view payload, snapshot.Read(restore.step()));
    ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::OpenSnapshot(payload));
    for (const optim::StateSlice& slice : state) {
      RETURN_IF_ERROR(window->Write(slice.data, [&](int64_t first, const auto& piece) {
        return ReadSlice(reader.get(), slice, first, piece);
      }));
    }
    return absl::OkStatus();
  }
  StoredState stored(restore);
  for (const optim::StateSlice& slice : state) {
    RETURN_IF_ERROR(window->Write(slice.data, [&](int64_t first, const auto& piece) {
      return AsDamage(stored.Read(slice, first, piece));
    }));
  }
  return absl::OkStatus();
}

int64_t NumInitialWeights(const std::vector<optim::StateSlice>& state) {
  int64_t count = 0;
  for (const optim::StateSlice& slice : state) {
    if (IsWeight(slice)) count += slice.data.size;
  }
  return count;
}

absl::Status LoadInitialWeights(const job::v1::ModelSpec& model,
                                const std::vector<optim::StateSlice>& state,
                                device::HostWindow* window,
                                absl::FunctionRef<void(int64_t count)> on_progress) {
  ASSIGN_OR_RETURN(const auto weights, hugging_face::InitialWeights::Open(model));
  for (const optim::StateSlice& slice : state) {
    if (!IsWeight(slice)) continue;
    const auto read = [&](int64_t begin, auto out) -> absl::Status {
      for (; !out.empty(); out.remove_prefix(std::min(kBlockElements, out.size()))) {
        const auto block = out.subspan(0, kBlockElements);
        RETURN_IF_ERROR(weights->Read(slice.name, BoxOf(slice), begin, block));
        begin += static_cast<int64_t>(block.size());
        on_progress(static_cast<int64_t>(block.size()));
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(window->Write(slice.data, [&](int64_t first, const tensor::HostVector& piece) {
      const auto count = static_cast<size_t>(piece.size());
      const int64_t begin = slice.begin + first;
      if (piece.dtype() == tensor::DType::kF64) {
        return read(begin, absl::MakeSpan(piece.as<double>(), count));
      }
      return read(begin, absl::MakeSpan(piece.as<float>(), count));
    }));
  }
  return absl::OkStatus();
}

}  // namespace megascale::engine
