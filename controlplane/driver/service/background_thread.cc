#include "controlplane/driver/service/background_thread.h"

#include <utility>

namespace megascale::driver {

BackgroundThread::~BackgroundThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void BackgroundThread::Do(std::function<void()> work) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (waiting_.size() >= waiting_max_) {
    lock.unlock();
    return work();
  }
  waiting_.push_back(std::move(work));
  lock.unlock();
  wake_.notify_one();
}

void BackgroundThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace megascale::driver
