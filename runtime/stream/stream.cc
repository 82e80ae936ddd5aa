#include "runtime/stream/stream.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::stream {
namespace {
constexpr size_t kInitialTasks = 64;
}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> Stream::Create(std::string name) {
  std::unique_ptr<Stream> stream(new Stream(std::move(name)));
  stream->Reserve(kInitialTasks);
  try {
    stream->thread_ = std::thread(&Stream::Run, stream.get());
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for stream ", stream->name(), ": ", error.what(),
                     "; raise the limit of processes (ulimit -u) or run fewer ranks here"));
  }
  pthread_setname_np(stream->thread_.native_handle(), stream->name_.substr(0, 15).c_str());
  return stream;
}

Stream::~Stream() {
  if (!thread_.joinable()) return;
  MEGASCALE_CHECK(std::this_thread::get_id() != thread_.get_id());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  queued_.notify_one();
  thread_.join();
  MEGASCALE_CHECK(num_run_ == num_enqueued_);
}

void Stream::Enqueue(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t num_queued = num_enqueued_ - num_taken_;
    if (num_queued == ring_.size()) ReserveLocked(2 * ring_.size());
    ring_[num_enqueued_ % ring_.size()] = std::move(task);
    ++num_enqueued_;
  }
  queued_.notify_one();
}

void Stream::Synchronize() {
  MEGASCALE_CHECK(std::this_thread::get_id() != thread_.get_id());
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t last = num_enqueued_;
  ++num_synchronizing_;
  ran_.wait(lock, [&] { return num_run_ >= last; });
  --num_synchronizing_;
}

void Stream::RunAndWait(absl::FunctionRef<void()> task) {
  struct Call {
    absl::FunctionRef<void()> task;
    std::mutex mutex = {};
    std::condition_variable ended = {};
    bool has_ended = false;
  } call{.task = task};
  Enqueue([&call] {
    call.task();
    // Notify under the lock: the caller frees this.
    const std::lock_guard<std::mutex> lock(call.mutex);
    call.has_ended = true;
    call.ended.notify_one();
  });
  std::unique_lock<std::mutex> lock(call.mutex);
  call.ended.wait(lock, [&call] { return call.has_ended; });
}

void Stream::Reserve(size_t num_tasks) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (num_tasks > ring_.size()) ReserveLocked(num_tasks);
}

void Stream::ReserveLocked(size_t num_tasks) {
  std::vector<std::function<void()>> larger(num_tasks);
  for (uint64_t i = num_taken_; i < num_enqueued_; ++i) {
    larger[i % larger.size()] = std::move(ring_[i % ring_.size()]);
  }
  ring_ = std::move(larger);
}

void Stream::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    queued_.wait(lock, [&] { return num_taken_ < num_enqueued_ || closing_; });
    if (num_taken_ == num_enqueued_) return;
    {
      const std::function<void()> task = std::exchange(ring_[num_taken_ % ring_.size()], nullptr);
      ++num_taken_;
      lock.unlock();
      task();
    }  // Frees the task's captures before taking the lock again.
    lock.lock();
    ++num_run_;
    if (num_synchronizing_ > 0) ran_.notify_all();
  }
}

void Event::Record(Stream& stream, uint64_t generation) {
  stream.Enqueue([this, generation] { Reach(generation); });
}

void Event::Wait(Stream& stream, uint64_t generation) {
  stream.Enqueue([this, generation] { Await(generation); });
}

void Event::Release() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
  }
  reached_.notify_all();
}

void Event::Reach(uint64_t generation) {
  // Notify under the lock: a waiter that continues may free this event.
  std::lock_guard<std::mutex> lock(mutex_);
  generation_ = std::max(generation_, generation);
  reached_.notify_all();
}

void Event::Await(uint64_t generation) {
  std::unique_lock<std::mutex> lock(mutex_);
  reached_.wait(lock, [&] { return generation_ >= generation || released_; });
}

}  // namespace megascale::stream
