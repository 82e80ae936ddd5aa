// A bounded queue of bytes with one writer and one reader, each in a thread or process of its own.
// Positions only grow, so that what is under way is `written - read`. Nobody waits here: Endpoint
// does, with doorbells.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "runtime/base/check.h"

namespace megascale::comm {

// Messages start at multiples of this, and capacities are multiples, so headers and elements never
// straddle the ring's end.
inline constexpr size_t kRingAlignment = 64;

struct RingControl {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "rings are shared between processes");

// A view; the memory is someone else's. Each side uses its own methods only.
class Ring {
 public:
  Ring() = default;
  Ring(RingControl* control, std::byte* data, size_t capacity)
      : control_(control), data_(data), capacity_(capacity) {}

  // Writer: the free bytes, as far as they are contiguous, and how many of them were filled.
  absl::Span<std::byte> WritableSpan() const {
    const uint64_t written = control_->written.load(std::memory_order_relaxed);
    const uint64_t used = written - control_->read.load(std::memory_order_acquire);
    MEGASCALE_CHECK(used <= capacity_);
    const size_t offset = written % capacity_;
    return {data_ + offset, std::min<size_t>(capacity_ - used, capacity_ - offset)};
  }
  void CommitWritten(size_t num_bytes) const {
    const uint64_t written = control_->written.load(std::memory_order_relaxed);
    control_->written.store(written + num_bytes, std::memory_order_release);
  }

  // Reader: the unread bytes, as far as they are contiguous, and how many of them were used up.
  absl::Span<const std::byte> ReadableSpan() const {
    const uint64_t read = control_->read.load(std::memory_order_relaxed);
    const uint64_t used = control_->written.load(std::memory_order_acquire) - read;
    MEGASCALE_CHECK(used <= capacity_);
    const size_t offset = read % capacity_;
    return {data_ + offset, std::min<size_t>(used, capacity_ - offset)};
  }
  // True: the writer may be waiting for room, tell it. (A writer that waits has filled the ring; a
  // reader that misses that here sees a full ring when it reads on.)
  [[nodiscard]] bool CommitRead(size_t num_bytes) const {
    const uint64_t read = control_->read.load(std::memory_order_relaxed);
    const uint64_t used = control_->written.load(std::memory_order_acquire) - read;
    control_->read.store(read + num_bytes, std::memory_order_release);
    return used >= capacity_ / 2;
  }

  size_t capacity() const { return capacity_; }

 private:
  RingControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

// A ring in this process's memory.
class PrivateRing {
 public:
  explicit PrivateRing(size_t capacity)
      : control_(std::make_unique<RingControl>()), data_(new std::byte[capacity]) {
    control_->written = 0;
    control_->read = 0;
    view_ = Ring(control_.get(), data_.get(), capacity);
  }
  const Ring& view() const { return view_; }

 private:
  std::unique_ptr<RingControl> control_;
  std::unique_ptr<std::byte[]> data_;
  Ring view_;
};

}  // namespace megascale::comm
