// A bounded queue of bytes with one writer and either one reader, or several that each read
// everything (a window). Each side may be a thread or a process of its own. Positions only grow, so
// `written - read` bytes are on their way to a reader. A Ring never waits; Endpoint does, with its
// doorbell.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/base/process/futex.h"

namespace megascale::comm {

// Messages start at multiples of this, and capacities are multiples of it, so headers and elements
// never straddle the end of a ring.
inline constexpr size_t kRingAlignment = 64;
// A page of memory.
inline constexpr size_t kPageBytes = 4096;

struct RingCounter {
  alignas(64) std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "rings are shared between processes");

// One thread sleeps on it until others have work for it: a counter in memory that processes share.
// The sleeper reads the counter, looks everywhere for work, and sleeps only if the counter has not
// changed in the meantime.
struct Doorbell {
  alignas(64) std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleeping;  // lets Bump skip the system call while the owner is awake

  uint32_t Count() const { return count.load(std::memory_order_acquire); }

  // Wakes the owner. Threads: any, in any process. Sequential consistency pairs with Wait: either
  // this sees the sleeper, or the sleeper sees the new count.
  void Bump() {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping.load(std::memory_order_seq_cst) != 0) base::FutexWakeAll(&count);
  }

  // Returns when Count() is no longer `seen`, after `timeout`, or spuriously. Threads: the owner's.
  void Wait(uint32_t seen, absl::Duration timeout) {
    sleeping.store(1, std::memory_order_seq_cst);
    base::FutexWait(&count, seen, timeout);
    sleeping.store(0, std::memory_order_relaxed);
  }
};

// A view of memory that another object owns. Each side may use its own methods only.
class Ring {
 public:
  Ring() = default;
  // `reads`: one counter for each reader.
  Ring(RingCounter* written, absl::Span<RingCounter> reads, std::byte* data, size_t capacity)
      : written_(&written->value), reads_(reads), data_(data), capacity_(capacity) {}

  // Writer: WritableSpan returns the contiguous free bytes; CommitWritten says how many were
  // filled.
  absl::Span<std::byte> WritableSpan() const {
    const uint64_t written = written_->load(std::memory_order_relaxed);
    uint64_t used = 0;
    for (size_t i = 0; i < reads_.size(); ++i) used = std::max(used, Unread(i));
    const size_t offset = written % capacity_;
    return {data_ + offset, std::min<size_t>(capacity_ - used, capacity_ - offset)};
  }
  void CommitWritten(size_t num_bytes) const {
    const uint64_t written = written_->load(std::memory_order_relaxed);
    written_->store(written + num_bytes, std::memory_order_release);
  }
  // Writer: returns the bytes that reader `index` has not read yet.
  uint64_t Unread(size_t index) const {
    const uint64_t written = written_->load(std::memory_order_relaxed);
    const uint64_t used = written - reads_[index].value.load(std::memory_order_acquire);
    MEGASCALE_CHECK(used <= capacity_);
    return used;
  }
  // Writer: whether all readers have read everything.
  bool AllRead() const {
    for (size_t i = 0; i < reads_.size(); ++i) {
      if (Unread(i) > 0) return false;
    }
    return true;
  }
  // Any side: whether reader `index` leaves no room for another message header.
  bool Blocks(size_t index) const {
    const uint64_t read = reads_[index].value.load(std::memory_order_acquire);
    return written_->load(std::memory_order_acquire) - read + kRingAlignment > capacity_;
  }

  // Reader: ReadableSpan returns the contiguous unread bytes; CommitRead says how many were read.
  absl::Span<const std::byte> ReadableSpan() const {
    const uint64_t read = reads_[own_].value.load(std::memory_order_relaxed);
    const uint64_t used = written_->load(std::memory_order_acquire) - read;
    MEGASCALE_CHECK(used <= capacity_);
    const size_t offset = read % capacity_;
    return {data_ + offset, std::min<size_t>(used, capacity_ - offset)};
  }
  // Returns true if the writer may be waiting for room: then notify it. (A writer that waits has
  // filled the ring. A reader that misses this here sees a full ring at its next read.)
  [[nodiscard]] bool CommitRead(size_t num_bytes) const {
    const uint64_t read = reads_[own_].value.load(std::memory_order_relaxed);
    const uint64_t used = written_->load(std::memory_order_acquire) - read;
    reads_[own_].value.store(read + num_bytes, std::memory_order_release);
    return used >= capacity_ / 2;
  }

  // Lets the next message begin where it would if `num_bytes` had passed through the ring, as bytes
  // did that took another way. Requires: one reader, an empty ring, and both sides leave it alone.
  void PassBy(size_t num_bytes) const {
    const size_t rest = num_bytes % kRingAlignment;
    CommitWritten(rest);
    (void)CommitRead(rest);
  }

  // Returns the view of reader `index`, made from the writer's; empty if this view is empty.
  Ring AsReader(size_t index) const {
    Ring reader = *this;
    reader.own_ = index;
    return reader;
  }

  size_t capacity() const { return capacity_; }
  explicit operator bool() const { return written_ != nullptr; }

 private:
  std::atomic<uint64_t>* written_ = nullptr;
  absl::Span<RingCounter> reads_;
  size_t own_ = 0;  // a reader's own index in reads_
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

// A ring in this process's own memory.
class PrivateRing {
 public:
  explicit PrivateRing(size_t capacity)
      : counters_(new RingCounter[2]()), data_(new std::byte[capacity]) {
    view_ = Ring(&counters_[0], {&counters_[1], 1}, data_.get(), capacity);
  }
  const Ring& view() const { return view_; }

  // Returns the bytes that a ring takes of the heap, which hands out large blocks in whole pages.
  static constexpr size_t BytesFor(size_t capacity) {
    return (capacity + 2 * sizeof(RingCounter) + kPageBytes - 1) / kPageBytes * kPageBytes;
  }

 private:
  std::unique_ptr<RingCounter[]> counters_;  // written, read
  std::unique_ptr<std::byte[]> data_;
  Ring view_;
};

}  // namespace megascale::comm
