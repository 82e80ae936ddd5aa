// A signal between threads that is given once, and waited for by the monotonic clock. abseil's
// timed waits end at a time of the wall clock: when that is set back by an hour, a wait of 50 ms
// takes an hour, and a process that only slept looks hung. Threads: any.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace megascale::base {

class StopSignal {
 public:
  void Give();
  // True once it was given; false after `timeout`. Blocking: until then.
  bool WaitFor(absl::Duration timeout);

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  bool is_given_ = false;
};

}  // namespace megascale::base
