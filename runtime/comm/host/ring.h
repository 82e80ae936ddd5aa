// A bounded queue of bytes with one writer and one reader, or several that each read everything (a
// window), each in a thread or process of its own. Positions only grow, so that what is under way
// to a reader is `written - read`. Nobody waits for a ring here:
// Endpoint does, with its doorbell.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/base/futex.h"

namespace megascale::comm {

// Messages start at multiples of this, and capacities are multiples, so headers and elements never
// straddle the ring's end.
inline constexpr size_t kRingAlignment = 64;

struct RingCounter {
  alignas(64) std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "rings are shared between processes");

// What one thread sleeps on until anybody has news for it: a counter in memory that processes
// share. The sleeper reads the counter, looks everywhere for work, and only then sleeps, unless the
// counter has moved in the meantime.
struct Doorbell {
  alignas(64) std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleeping;  // spares bumps the system call while nobody sleeps

  uint32_t Count() const { return count.load(std::memory_order_acquire); }

  // Any thread or process. Sequential consistency pairs with Wait: either this sees the sleeper, or
  // the sleeper sees this.
  void Bump() {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping.load(std::memory_order_seq_cst) != 0) base::FutexWakeAll(&count);
  }

  // The owner's thread only. Returns when Count() is no longer `seen`, after `timeout`, or sooner.
  void Wait(uint32_t seen, absl::Duration timeout) {
    sleeping.store(1, std::memory_order_seq_cst);
    base::FutexWait(&count, seen, timeout);
    sleeping.store(0, std::memory_order_relaxed);
  }
};

// A view; the memory is someone else's. Each side uses its own methods only.
class Ring {
 public:
  Ring() = default;
  // `reads`: one for each reader.
  Ring(RingCounter* written, absl::Span<RingCounter> reads, std::byte* data, size_t capacity)
      : written_(&written->value), reads_(reads), data_(data), capacity_(capacity) {}

  // Writer: the free bytes, as far as they are contiguous, and how many of them were filled.
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
  // Writer: what the reader `index` has not read yet.
  uint64_t Unread(size_t index) const {
    const uint64_t written = written_->load(std::memory_order_relaxed);
    const uint64_t used = written - reads_[index].value.load(std::memory_order_acquire);
    MEGASCALE_CHECK(used <= capacity_);
    return used;
  }
  // Writer: whether nothing is under way any more.
  bool AllRead() const {
    for (size_t i = 0; i < reads_.size(); ++i) {
      if (Unread(i) > 0) return false;
    }
    return true;
  }
  // Anybody: whether the reader `index` leaves no room for a message to start.
  bool Blocks(size_t index) const {
    const uint64_t read = reads_[index].value.load(std::memory_order_acquire);
    return written_->load(std::memory_order_acquire) - read + kRingAlignment > capacity_;
  }

  // Reader: the unread bytes, as far as they are contiguous, and how many of them were used up.
  absl::Span<const std::byte> ReadableSpan() const {
    const uint64_t read = reads_[own_].value.load(std::memory_order_relaxed);
    const uint64_t used = written_->load(std::memory_order_acquire) - read;
    MEGASCALE_CHECK(used <= capacity_);
    const size_t offset = read % capacity_;
    return {data_ + offset, std::min<size_t>(used, capacity_ - offset)};
  }
  // True: the writer may be waiting for room, tell it. (A writer that waits has filled the ring; a
  // reader that misses that here sees a full ring when it reads on.)
  [[nodiscard]] bool CommitRead(size_t num_bytes) const {
    const uint64_t read = reads_[own_].value.load(std::memory_order_relaxed);
    const uint64_t used = written_->load(std::memory_order_acquire) - read;
    reads_[own_].value.store(read + num_bytes, std::memory_order_release);
    return used >= capacity_ / 2;
  }

  // The view of the reader `index`, from the writer's. Of an empty view: an empty one.
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
  size_t own_ = 0;  // of reads_, a reader's
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

// A ring in this process's memory.
class PrivateRing {
 public:
  explicit PrivateRing(size_t capacity)
      : counters_(new RingCounter[2]()), data_(new std::byte[capacity]) {
    view_ = Ring(&counters_[0], {&counters_[1], 1}, data_.get(), capacity);
  }
  const Ring& view() const { return view_; }

 private:
  std::unique_ptr<RingCounter[]> counters_;  // written, read
  std::unique_ptr<std::byte[]> data_;
  Ring view_;
};

}  // namespace megascale::comm
