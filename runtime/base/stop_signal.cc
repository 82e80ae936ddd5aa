#include "runtime/base/stop_signal.h"

namespace megascale::base {

void StopSignal::Give() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_given_ = true;
  }
  given_.notify_all();
}

bool StopSignal::WaitFor(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return given_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return is_given_; });
}

}  // namespace megascale::base
