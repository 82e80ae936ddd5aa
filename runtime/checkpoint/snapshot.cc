#include "runtime/checkpoint/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/process/futex.h"
#include "runtime/base/status.h"

namespace megascale::checkpoint {
namespace {

constexpr uint64_t kMagic = 0x0031'5041'4e53'534d;  // "MSSNAP1"
constexpr size_t kPage = 4096;

// Longest sleep: a process that is killed between a store and its wake-up leaves a sleeper waiting.
constexpr absl::Duration kSleepMax = absl::Milliseconds(50);

size_t RoundUp(size_t size) { return (size + kPage - 1) / kPage * kPage; }

}  // namespace

// The first page of the region; the buffers follow.
struct SnapshotRegion {
  struct alignas(64) Buffer {
    std::atomic<uint64_t> seal;            // 0: not sealed
    std::atomic<uint64_t> persisted_seal;  // seal of the content that is on storage
    std::atomic<int64_t> attempt;
    std::atomic<int64_t> step;
    std::atomic<int64_t> size_bytes;
    std::atomic<uint64_t> checksum;
  };

  uint64_t magic;
  uint64_t capacity;  // bytes of one buffer
  int32_t rank;
  std::atomic<uint32_t> num_persisted;  // grows with every MarkPersisted; writers sleep on it
  std::atomic<uint32_t> storage_fails;
  std::atomic<uint64_t> last_seal;
  std::array<Buffer, 2> buffers;

  // The table lies behind the buffers.
  uint64_t table_capacity;
  std::atomic<uint64_t> table_bytes;  // 0: no table
  std::atomic<uint64_t> table_checksum;

  std::byte* payload(int buffer) {
    return reinterpret_cast<std::byte*>(this) + kPage + static_cast<size_t>(buffer) * capacity;
  }

  char* table() { return reinterpret_cast<char*>(payload(2)); }

  static absl::StatusOr<SnapshotRegion*> Open(const base::SharedMemory& memory) {
    static_assert(sizeof(SnapshotRegion) <= kPage);
    auto* region = reinterpret_cast<SnapshotRegion*>(memory.data());
    const size_t room = std::max(memory.size_bytes(), kPage) - kPage;
    if (memory.size_bytes() < kPage || region->magic != kMagic || region->table_capacity > room ||
        region->capacity > (room - region->table_capacity) / 2) {
      return absl::InvalidArgumentError(absl::StrCat("snapshot memory of ", memory.size_bytes(),
                                                     " bytes: was not formatted as such"));
    }
    return region;
  }

  // Returns the content of a buffer if it is sealed and stayed so while it was read.
  std::optional<SealedSnapshot> Sealed(int buffer) const {
    const Buffer& from = buffers[static_cast<size_t>(buffer)];
    SealedSnapshot snapshot;
    snapshot.seal = from.seal.load(std::memory_order_acquire);
    if (snapshot.seal == 0) return std::nullopt;
    snapshot.rank = rank;
    snapshot.buffer = buffer;
    snapshot.attempt = from.attempt.load(std::memory_order_relaxed);
    snapshot.step = from.step.load(std::memory_order_relaxed);
    snapshot.size_bytes = from.size_bytes.load(std::memory_order_relaxed);
    snapshot.checksum = from.checksum.load(std::memory_order_relaxed);
    snapshot.persisted = from.persisted_seal.load(std::memory_order_relaxed) == snapshot.seal;
    if (!IsCurrent(snapshot)) return std::nullopt;
    return snapshot;
  }

  bool IsCurrent(const SealedSnapshot& snapshot) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return buffers[static_cast<size_t>(snapshot.buffer)].seal.load(std::memory_order_relaxed) ==
           snapshot.seal;
  }

  std::vector<SealedSnapshot> List() const {
    std::vector<SealedSnapshot> found;
    for (int buffer = 0; buffer < 2; ++buffer) {
      if (const auto snapshot = Sealed(buffer)) found.push_back(*snapshot);
    }
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return a.seal > b.seal; });
    return found;
  }

  void Unseal(int buffer) {
    buffers[static_cast<size_t>(buffer)].seal.store(0, std::memory_order_relaxed);
    // Later writes must not become visible before this store.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
};

size_t SnapshotBytes(int64_t payload_bytes, size_t table_bytes) {
  MEGASCALE_CHECK(payload_bytes >= 0);
  return kPage + 2 * RoundUp(static_cast<size_t>(payload_bytes)) + RoundUp(table_bytes);
}

void FormatSnapshots(base::SharedMemory& region, int rank, size_t table_bytes) {
  const size_t table_capacity = RoundUp(table_bytes);
  MEGASCALE_CHECK(region.size_bytes() >= kPage + table_capacity);
  std::memset(region.data(), 0, kPage);
  auto* header = reinterpret_cast<SnapshotRegion*>(region.data());
  header->capacity = (region.size_bytes() - kPage - table_capacity) / 2 / kPage * kPage;
  header->table_capacity = table_capacity;
  header->rank = rank;
  header->magic = kMagic;
}

absl::Status KeepTable(base::SharedMemory& region, absl::string_view table) {
  ASSIGN_OR_RETURN(SnapshotRegion* const opened, SnapshotRegion::Open(region));
  if (table.size() > opened->table_capacity) {
    return absl::ResourceExhaustedError(
        absl::StrCat("snapshot memory of rank ", opened->rank, ": has room for a table of ",
                     opened->table_capacity, " bytes, not ", table.size()));
  }
  if (const auto kept = KeptTable(region); kept.ok() && *kept == table) return absl::OkStatus();
  opened->table_bytes.store(0, std::memory_order_relaxed);
  // As for buffers: later writes must not become visible before this store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(opened->table(), table.data(), table.size());
  opened->table_checksum.store(base::Xxh3(table.data(), table.size()), std::memory_order_relaxed);
  opened->table_bytes.store(table.size(), std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<std::string> KeptTable(const base::SharedMemory& region) {
  ASSIGN_OR_RETURN(SnapshotRegion* const opened, SnapshotRegion::Open(region));
  const uint64_t bytes = opened->table_bytes.load(std::memory_order_acquire);
  const std::string name =
      absl::StrCat("the table of products in the snapshot memory of rank ", opened->rank);
  if (bytes == 0) return absl::NotFoundError(absl::StrCat(name, ": there is none"));
  if (bytes <= opened->table_capacity) {
    std::string table(opened->table(), bytes);
    const uint64_t checksum = opened->table_checksum.load(std::memory_order_relaxed);
    if (base::Xxh3(table.data(), table.size()) == checksum) return table;
  }
  return absl::DataLossError(absl::StrCat(name, ": its checksum differs"));
}

std::vector<SealedSnapshot> ListSealed(const base::SharedMemory& region) {
  const auto opened = SnapshotRegion::Open(region);
  return opened.ok() ? (*opened)->List() : std::vector<SealedSnapshot>();
}

absl::StatusOr<SnapshotReader> SnapshotReader::Open(const base::SharedMemory* region) {
  ASSIGN_OR_RETURN(SnapshotRegion* const opened, SnapshotRegion::Open(*region));
  return SnapshotReader(opened);
}

int SnapshotReader::rank() const { return region_->rank; }

std::vector<SealedSnapshot> SnapshotReader::List() const { return region_->List(); }

std::optional<SealedSnapshot> SnapshotReader::Find(int64_t attempt, int64_t step) const {
  for (const SealedSnapshot& snapshot : List()) {
    if (snapshot.attempt == attempt && snapshot.step == step) return snapshot;
  }
  return std::nullopt;
}

absl::StatusOr<absl::string_view> SnapshotReader::Read(int64_t step) const {
  for (const SealedSnapshot& snapshot : List()) {
    if (snapshot.step == step) return Read(snapshot);
  }
  return absl::NotFoundError(
      absl::StrCat("snapshot memory of rank ", rank(), ": has no sealed step ", step));
}

absl::StatusOr<absl::string_view> SnapshotReader::Read(const SealedSnapshot& snapshot) const {
  const auto name = absl::StrCat("snapshot of rank ", rank(), " at step ", snapshot.step,
                                 ", attempt ", snapshot.attempt);
  if (snapshot.size_bytes < 0 || static_cast<uint64_t>(snapshot.size_bytes) > region_->capacity) {
    return absl::DataLossError(absl::StrCat(name, ": claims ", snapshot.size_bytes,
                                            " bytes in a buffer of ", region_->capacity));
  }
  const absl::string_view payload(reinterpret_cast<const char*>(region_->payload(snapshot.buffer)),
                                  static_cast<size_t>(snapshot.size_bytes));
  const uint64_t checksum = base::Xxh3(payload.data(), payload.size());
  if (!IsCurrent(snapshot)) {
    return absl::AbortedError(absl::StrCat(name, ": its buffer was taken by a newer one"));
  }
  if (checksum != snapshot.checksum) {
    return absl::DataLossError(
        absl::StrCat(name, ": its checksum differs; restore from another one"));
  }
  return payload;
}

bool SnapshotReader::IsCurrent(const SealedSnapshot& snapshot) const {
  return region_->IsCurrent(snapshot);
}

void SnapshotReader::MarkPersisted(const SealedSnapshot& snapshot) const {
  // Seal numbers only grow, so a late mark has no effect and never removes a newer one.
  auto& mark = region_->buffers[static_cast<size_t>(snapshot.buffer)].persisted_seal;
  uint64_t marked = mark.load(std::memory_order_relaxed);
  while (marked < snapshot.seal && !mark.compare_exchange_weak(marked, snapshot.seal)) {
  }
  region_->num_persisted.fetch_add(1, std::memory_order_release);
  base::FutexWakeAll(&region_->num_persisted);
}

void SnapshotReader::SetStorageFails(bool fails) const {
  region_->storage_fails.store(fails ? 1 : 0, std::memory_order_relaxed);
  region_->num_persisted.fetch_add(1, std::memory_order_release);
  base::FutexWakeAll(&region_->num_persisted);
}

absl::StatusOr<SnapshotWriter> SnapshotWriter::Open(base::SharedMemory* region, int64_t attempt,
                                                    int64_t restored_step) {
  ASSIGN_OR_RETURN(SnapshotRegion* const opened, SnapshotRegion::Open(*region));
  for (const SealedSnapshot& snapshot : opened->List()) {
    if (snapshot.step > restored_step) opened->Unseal(snapshot.buffer);
  }
  opened->storage_fails.store(0, std::memory_order_relaxed);
  return SnapshotWriter(opened, attempt);
}

std::optional<int> SnapshotWriter::FreeBuffer() const {
  const std::vector<SealedSnapshot> sealed = region_->List();
  if (sealed.empty()) return 0;
  if (sealed.size() == 1) return 1 - sealed.front().buffer;
  const SealedSnapshot& older = sealed.back();
  const bool fails = region_->storage_fails.load(std::memory_order_relaxed) != 0;
  // Once the newer snapshot is on storage, the host may never persist the older one.
  const bool on_storage = older.persisted || sealed.front().persisted;
  if (on_storage || older.attempt < attempt_ || fails) return older.buffer;
  return std::nullopt;
}

absl::StatusOr<absl::Span<std::byte>> SnapshotWriter::Acquire(absl::Duration timeout) {
  const absl::Duration until = base::RealClock().Monotonic() + timeout;
  while (!acquired_.has_value()) {
    const uint32_t seen = region_->num_persisted.load(std::memory_order_acquire);
    if (const auto buffer = FreeBuffer()) {
      region_->Unseal(*buffer);
      acquired_ = buffer;
      break;
    }
    const absl::Duration left = until - base::RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "snapshot memory of rank ", region_->rank, ": step ", region_->List().back().step,
          " is not on storage after ", absl::FormatDuration(timeout),
          "; storage is behind, see the log of the host process"));
    }
    base::FutexWait(&region_->num_persisted, seen, std::min(left, kSleepMax));
  }
  return absl::MakeSpan(region_->payload(*acquired_), region_->capacity);
}

absl::StatusOr<int> SnapshotWriter::Seal(int64_t step, int64_t size_bytes) {
  if (!acquired_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("snapshot memory of rank ", region_->rank, ": no buffer is acquired to seal"));
  }
  if (size_bytes < 0 || static_cast<uint64_t>(size_bytes) > region_->capacity) {
    return absl::InvalidArgumentError(absl::StrCat("snapshot memory of rank ", region_->rank,
                                                   ": cannot seal ", size_bytes,
                                                   " bytes in a buffer of ", region_->capacity));
  }
  const int index = *acquired_;
  SnapshotRegion::Buffer& buffer = region_->buffers[static_cast<size_t>(index)];
  MEGASCALE_CHECK(buffer.seal.load(std::memory_order_relaxed) == 0);
  buffer.attempt.store(attempt_, std::memory_order_relaxed);
  buffer.step.store(step, std::memory_order_relaxed);
  buffer.size_bytes.store(size_bytes, std::memory_order_relaxed);
  buffer.checksum.store(base::Xxh3(region_->payload(index), static_cast<size_t>(size_bytes)),
                        std::memory_order_relaxed);
  const uint64_t seal = region_->last_seal.fetch_add(1, std::memory_order_relaxed) + 1;
  buffer.seal.store(seal, std::memory_order_release);
  acquired_.reset();
  return index;
}

}  // namespace megascale::checkpoint
