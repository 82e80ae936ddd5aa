// A one-time signal between threads, with waits on the monotonic clock. abseil's timed waits end at
// a wall-clock time: if that is set back by an hour, a wait of 50 ms takes an hour, and a process
// that merely slept looks hung. Threads: any.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace megascale::base {

class StopSignal {
 public:
  void Notify();
  // Waits until Notify was called, then returns true; false after `timeout`. Blocking.
  bool WaitFor(absl::Duration timeout);

 private:
  std::mutex mutex_;
  std::condition_variable notified_;
  bool is_notified_ = false;
};

}  // namespace megascale::base
