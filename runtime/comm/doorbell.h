// What one thread sleeps on until anybody has news for it: a counter in memory that processes
// share. The sleeper reads the counter, looks everywhere for work, and only then sleeps, unless the
// counter has moved in the meantime.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "runtime/base/futex.h"

namespace megascale::comm {

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

}  // namespace megascale::comm
