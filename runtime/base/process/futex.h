// Sleeping on a word of shared memory until another thread or process changes it.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace megascale::base {

// Sleeps while `*word == expected`, at most `timeout`. May return early; the caller must check
// again. The word may lie in memory shared between processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout);

// Wakes all threads that sleep on `word`.
void FutexWakeAll(std::atomic<uint32_t>* word);

}  // namespace megascale::base
