// Takes snapshots of a rank's shard while steps run: the copy to the host runs on a stream of its
// own, through pinned memory, and only work that changes the state waits for the copy.
//
//   RETURN_IF_ERROR(taker->Begin(moment));      // now the next step may be launched
//   taker->AwaitCopied(compute);                // in that step, before the optimizer's work
//   ASSIGN_OR_RETURN(buffer, taker->Finish());  // any time after Begin
//
// Threads: Begin and Finish by one thread; AwaitCopied on the thread of the stream that it is
// given. Ownership: borrows its options, and outlives the streams that AwaitCopied was called for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/device/device.h"
#include "runtime/device/staged_copy.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/stream/stream.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {

struct SnapshotTakerOptions {
  device::Device* device = nullptr;
  std::vector<optim::StateSlice> state;  // all that a snapshot holds; at least one slice
  int rank = 0;
  telemetry::HeartbeatWriter* heartbeat = nullptr;  // null: not written
  absl::Duration storage_timeout;                   // how long Begin waits for a free buffer
  std::function<absl::Status()> abort_reason;       // not OK: Begin waits no longer
};

class SnapshotTaker {
 public:
  // Errors: ResourceExhausted - no stream or no pinned memory.
  static absl::StatusOr<std::unique_ptr<SnapshotTaker>> Create(SnapshotTakerOptions options);

  // Begins an attempt that was restored at `restored_step`. Called once. Errors: as
  // checkpoint::SnapshotWriter::Open.
  absl::Status Open(base::SharedMemory* region, int64_t attempt, int64_t restored_step);

  // Takes a free buffer and begins to copy the state into it. Requires: no work that changes the
  // state is under way, and Finish was called for the snapshot before. Blocking: until storage has
  // freed a buffer. Errors: Unknown - storage is too far behind; those of `abort_reason`.
  absl::Status Begin(const checkpoint::ShardMoment& moment);

  // Makes the work that is issued to `stream` from now on wait until the device has read the state
  // for the snapshot that was begun last. Blocking: the stream's thread, until that copy is issued.
  void AwaitCopied(stream::Stream& stream);

  // Waits for the copy, seals the buffer and returns its index. Requires: Begin returned OK.
  // Errors: Internal - the device failed.
  absl::StatusOr<int> Finish();

 private:
  explicit SnapshotTaker(SnapshotTakerOptions options) : options_(std::move(options)) {}
  absl::StatusOr<absl::Span<std::byte>> AcquireBuffer();

  const SnapshotTakerOptions options_;
  std::optional<checkpoint::ShardLayout> layout_;
  std::optional<checkpoint::SnapshotWriter> writer_;
  checkpoint::ShardMoment moment_ = {};  // of the snapshot under way, as the next two
  absl::Span<std::byte> payload_;
  absl::Status copied_status_;  // of the stream's thread, until Finish
  std::atomic<uint64_t> num_begun_ = 0;
  // The stream's last work uses the first two of the following, so the stream is destroyed before
  // them.
  std::unique_ptr<device::StagedCopy> copy_;
  std::unique_ptr<stream::Event> copied_;  // its generation: the number of the snapshot
  std::unique_ptr<stream::Stream> stream_;
};

}  // namespace megascale::engine
