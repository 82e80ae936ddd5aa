#include "runtime/base/stop_signal.h"

namespace megascale::base {

void StopSignal::Notify() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_notified_ = true;
  }
  notified_.notify_all();
}

bool StopSignal::WaitFor(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return notified_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                            [this] { return is_notified_; });
}

}  // namespace megascale::base
