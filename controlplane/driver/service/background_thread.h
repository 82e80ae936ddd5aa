// A thread for work of the driver's loop that nobody waits for and that the next driver can do as
// well. Threads: any.
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
  explicit BackgroundThread(size_t waiting_max = 4096) : waiting_max_(waiting_max) {}
  // Ends after the work in hand. What waits is not done.
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
