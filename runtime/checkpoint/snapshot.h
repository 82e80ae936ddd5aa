// The double-buffered snapshot memory of one rank. The agent makes the region, so that a worker's
// crash loses nothing. A worker copies its weights and moments into one buffer and seals it. The
// host process writes sealed snapshots to storage. A worker of the next attempt restores from the
// newest step that all ranks have.
//
// The writer seals a buffer by storing the buffer's seal number after all other writes. It unseals
// the buffer by clearing that number before all other writes. So a writer that is killed at any
// point leaves the buffer either sealed and complete or not sealed. Seal numbers grow and are never
// reused, so a reader notices that a writer took its buffer.
//
// On GPUs the region of rank 0 also keeps the job's table of matrix products (product_table.h), so
// that a restart from memory reads nothing from storage.
//
// Ownership: writer and readers borrow the region. Threads: one writing process at a time (one
// thread); any number of readers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/process/shared_memory.h"

namespace megascale::checkpoint {

// Returns the size of a region whose buffers hold `payload_bytes` each (ShardLayout::size_bytes),
// with room for a table of `table_bytes`.
size_t SnapshotBytes(int64_t payload_bytes, size_t table_bytes = 0);

// Empties both buffers and the table. Call it once, before other processes get the region.
// Requires: `table_bytes` is that of SnapshotBytes.
void FormatSnapshots(base::SharedMemory& region, int rank, size_t table_bytes = 0);

// Keeps `table` in the region, in place of any other. A process that is killed meanwhile leaves the
// region without a table, or with a whole table. Threads: the writer's. Errors: ResourceExhausted -
// the region has no room for it; InvalidArgument - the region is not formatted as snapshot memory.
absl::Status KeepTable(base::SharedMemory& region, absl::string_view table);

// Returns the table that the region keeps. Errors: NotFound - there is no table; DataLoss - its
// checksum differs; InvalidArgument - as KeepTable.
absl::StatusOr<std::string> KeptTable(const base::SharedMemory& region);

struct SealedSnapshot {
  int rank = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  int buffer = 0;  // 0 or 1
  int64_t size_bytes = 0;
  bool persisted = false;
  uint64_t seal = 0;  // identifies this content of the buffer
  uint64_t checksum = 0;
};

// Lists the sealed snapshots of a region, newest first; empty if the region is not snapshot memory.
// Does not read their contents.
std::vector<SealedSnapshot> ListSealed(const base::SharedMemory& region);

// The mapped region, for writer and reader.
struct SnapshotRegion;

class SnapshotReader {
 public:
  // Errors: InvalidArgument - the region is not formatted as snapshot memory.
  static absl::StatusOr<SnapshotReader> Open(const base::SharedMemory* region);

  int rank() const;
  // Newest first.
  std::vector<SealedSnapshot> List() const;
  std::optional<SealedSnapshot> Find(int64_t attempt, int64_t step) const;

  // Returns the contents of the newest sealed snapshot of `step`, from any attempt, after checking
  // the checksum. Valid until a writer takes the buffer: see IsCurrent. Errors: NotFound - there is
  // no such snapshot; DataLoss - the checksum differs; Aborted - a writer took the buffer.
  absl::StatusOr<absl::string_view> Read(int64_t step) const;
  absl::StatusOr<absl::string_view> Read(const SealedSnapshot& snapshot) const;

  // False once a writer has taken the snapshot's buffer: bytes read from it may be torn.
  bool IsCurrent(const SealedSnapshot& snapshot) const;

  // Records that a snapshot is safely on storage, so that its buffer may be reused, and wakes a
  // waiting writer. Does nothing if the buffer holds another snapshot by now.
  void MarkPersisted(const SealedSnapshot& snapshot) const;

  // Records whether storage is failing in a way that may last (a full disk). While it does, the
  // writer does not wait: it takes the older buffer although that snapshot is not on storage. A
  // writer that begins an attempt clears this.
  void SetStorageFails(bool fails) const;

 private:
  explicit SnapshotReader(SnapshotRegion* region) : region_(region) {}
  SnapshotRegion* region_;
};

class SnapshotWriter {
 public:
  // Begins an attempt that was restored at `restored_step`. Drops sealed snapshots of later steps:
  // the rollback made them invalid. Restore first, then open the writer. Errors: InvalidArgument -
  // the region is not formatted as snapshot memory.
  static absl::StatusOr<SnapshotWriter> Open(base::SharedMemory* region, int64_t attempt,
                                             int64_t restored_step);

  // Takes a buffer that is not sealed. If both are sealed, takes the older buffer, once either of
  // the two is persisted. Never takes the newest sealed snapshot. Does not wait for unpersisted
  // snapshots of earlier attempts, nor for storage that fails. Blocking: at most `timeout`; zero
  // only tries. Errors: DeadlineExceeded - storage is behind; nothing was changed, call again.
  absl::StatusOr<absl::Span<std::byte>> Acquire(absl::Duration timeout);

  // Seals the first `size_bytes` bytes of the acquired buffer, with their checksum, and returns the
  // buffer's index. Errors: FailedPrecondition - no buffer is acquired; InvalidArgument - the
  // buffer is smaller than `size_bytes`.
  absl::StatusOr<int> Seal(int64_t step, int64_t size_bytes);

 private:
  SnapshotWriter(SnapshotRegion* region, int64_t attempt) : region_(region), attempt_(attempt) {}
  std::optional<int> FreeBuffer() const;

  SnapshotRegion* region_;
  int64_t attempt_;
  std::optional<int> acquired_;
};

}  // namespace megascale::checkpoint
