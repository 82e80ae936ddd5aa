// A thread for work of the driver's loop that nobody waits for. Threads: any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace megascale::driver {

class BackgroundThread {
 public:
  explicit BackgroundThread(size_t waiting_max = 1024) : waiting_max_(waiting_max) {}
  // Does what waits, then ends.
  ~BackgroundThread();

  // Does `work` soon. If too much waits already, this call does it, before what waits.
  void Do(std::function<void()> work);

 private:
  void Run();

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::thread thread_ = std::thread([this] { Run(); });
};

}  // namespace megascale::driver
