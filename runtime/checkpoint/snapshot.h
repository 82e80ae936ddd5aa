// The double-buffered snapshot memory of one rank: a region that the agent makes, so that a
// worker's crash loses nothing. A worker copies its weights and moments into one buffer and seals
// it; the host process writes sealed ones to storage; a worker of the next attempt restores from
// the newest that all ranks have.
//
// A buffer is sealed by one store of its seal number, after everything else, and is unsealed by one
// store before anything else: a writer killed anywhere leaves it either sealed and whole or not
// sealed. Seal numbers grow and are never reused, so a reader notices that a buffer was taken from
// under it.
//
// Ownership: writer and readers borrow the region. Threads: one writing process at a time (one
// thread); any number of readers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/shared_memory.h"

namespace megascale::checkpoint {

// Size of a region whose buffers hold `payload_bytes` each (ShardLayout::size_bytes).
size_t SnapshotBytes(int64_t payload_bytes);

// Empties both buffers. Once, before the region is passed on.
void FormatSnapshots(base::SharedMemory& region, int rank);

struct SealedSnapshot {
  int rank = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  int buffer = 0;  // 0 or 1
  int64_t size_bytes = 0;
  bool persisted = false;
  uint64_t seal = 0;  // names this content of the buffer
  uint64_t checksum = 0;
};

// The sealed snapshots in a region, newest first; empty for a region that is none. Does not read
// their contents.
std::vector<SealedSnapshot> ListSealed(const base::SharedMemory& region);

// The mapped region. Used by writer and reader.
struct SnapshotRegion;

class SnapshotReader {
 public:
  // Errors: InvalidArgument - the region is no formatted snapshot memory.
  static absl::StatusOr<SnapshotReader> Open(const base::SharedMemory* region);

  int rank() const;
  // Newest first.
  std::vector<SealedSnapshot> List() const;
  std::optional<SealedSnapshot> Find(int64_t attempt, int64_t step) const;

  // The contents of the newest sealed snapshot of `step`, of whatever attempt, after their checksum
  // was compared. Valid as long as no writer of a newer attempt takes the buffer: see IsCurrent.
  // Errors: NotFound; DataLoss - the checksum differs; Aborted - the buffer was taken.
  absl::StatusOr<absl::string_view> Read(int64_t step) const;
  absl::StatusOr<absl::string_view> Read(const SealedSnapshot& snapshot) const;

  // False once a writer has taken the snapshot's buffer: bytes read from it may be torn.
  bool IsCurrent(const SealedSnapshot& snapshot) const;

  // Says that a snapshot is safely on storage, so that its buffer may be taken again; wakes a
  // waiting writer. Nothing happens when the buffer holds another one by now.
  void MarkPersisted(const SealedSnapshot& snapshot) const;

  // Says whether storage fails now, in a way that may last (a full disk). While it does, the writer
  // does not wait: it takes the older buffer although that is on no storage. A writer that begins
  // an attempt takes it back.
  void SetStorageFails(bool fails) const;

 private:
  explicit SnapshotReader(SnapshotRegion* region) : region_(region) {}
  SnapshotRegion* region_;
};

class SnapshotWriter {
 public:
  // Begins an attempt that was restored at `restored_step`. Sealed snapshots of later steps were
  // rolled back with the attempt that made them: they are dropped. Restore first, then open the
  // writer. Errors: InvalidArgument - the region is no formatted snapshot memory.
  static absl::StatusOr<SnapshotWriter> Open(base::SharedMemory* region, int64_t attempt,
                                             int64_t restored_step);

  // Takes a buffer: one that is not sealed, or else the older one once it, or the newer one, is
  // persisted. The newest sealed snapshot is never taken, and what an earlier attempt left
  // unpersisted need not be waited for, nor storage that fails. Blocking: at most `timeout`, zero
  // to try. Errors: DeadlineExceeded
  // - storage is behind; nothing was done, call again.
  absl::StatusOr<absl::Span<std::byte>> Acquire(absl::Duration timeout);

  // Seals the acquired buffer as the first `size_bytes` bytes of it and returns its index. Computes
  // the checksum. Errors: FailedPrecondition - no buffer is acquired; InvalidArgument - it is
  // smaller than `size_bytes`.
  absl::StatusOr<int> Seal(int64_t step, int64_t size_bytes);

 private:
  SnapshotWriter(SnapshotRegion* region, int64_t attempt) : region_(region), attempt_(attempt) {}
  std::optional<int> FreeBuffer() const;

  SnapshotRegion* region_;
  int64_t attempt_;
  std::optional<int> acquired_;
};

}  // namespace megascale::checkpoint
