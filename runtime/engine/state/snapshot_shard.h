// A rank's optimizer shard as part of a checkpoint: laid out once, copied into a snapshot buffer
// after a step, read back from a snapshot or from storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/device/host_window.h"
#include "runtime/device/staged_copy.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

// Writes the whole shard into `payload`, with the values that the work issued before to the stream
// of `copy` leaves. `payload` is complete once that stream's work has ended. Blocking. Requires:
// called on that stream's thread; `payload` has layout.size_bytes() bytes, and the layout was made
// for slices like `state`. Errors: Internal - the device failed.
absl::Status CopyStateOut(const checkpoint::ShardLayout& layout,
                          const std::vector<optim::StateSlice>& state,
                          const checkpoint::ShardMoment& moment, device::StagedCopy* copy,
                          absl::Span<std::byte> payload);

// A checkpoint on storage, read slice by slice. The first Read opens it; if that fails, later ones
// return the same error. Threads: one. Blocking: storage.
class StoredState {
 public:
  // Requires: `restore` names a checkpoint on storage.
  explicit StoredState(megascale::agent::v1::RestorePoint restore) : restore_(std::move(restore)) {}

  // Overwrites `piece` with the elements of the slice from `first` on; after a failure it is
  // undefined, and other slices may still be read. Errors: as CheckpointReader; the message begins
  // with the directory or the file.
  absl::Status Read(const optim::StateSlice& slice, int64_t first, const tensor::HostVector& piece);

 private:
  absl::Status Open();

  megascale::agent::v1::RestorePoint restore_;
  std::unique_ptr<checkpoint::CheckpointReader> reader_;
  absl::Status open_status_;
};

// Turns a failed restore into DataLoss with the same message: the checkpoint is damaged, gone, of
// another model, or on storage that this machine cannot read; the driver then chooses the next
// source. Exception: ResourceExhausted stays, because this process has no memory or descriptor
// left.
absl::Status AsDamage(const absl::Status& status);

// Overwrites the memory of `state` from the restore point: a sealed snapshot in `snapshots`, or a
// checkpoint of any layout on storage. Errors: DataLoss - it is damaged, missing, of another model,
// or unreadable on this machine; ResourceExhausted - no memory or descriptor is left.
absl::Status RestoreState(const megascale::agent::v1::RestorePoint& restore,
                          const base::SharedMemory* snapshots,
                          const std::vector<optim::StateSlice>& state, device::HostWindow* window);

// Returns how many elements LoadInitialWeights reads.
int64_t NumInitialWeights(const std::vector<optim::StateSlice>& state);

// Overwrites the weights of `state`, but no moments, with those of `model.from`. Calls
// `on_progress` after each block of a few MiB, with its elements: a large tensor on slow storage
// takes long. Errors: as InitialWeights::Open and InitialWeights::Read, with the path.
absl::Status LoadInitialWeights(const megascale::job::v1::ModelSpec& model,
                                const std::vector<optim::StateSlice>& state,
                                device::HostWindow* window,
                                absl::FunctionRef<void(int64_t count)> on_progress);

}  // namespace megascale::engine
