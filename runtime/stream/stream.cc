#include "runtime/stream/stream.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace megascale::stream {
namespace {
constexpr size_t kInitialTasks = 64;

// A call that another thread waits for.
struct Call {
  absl::FunctionRef<void(Stream&)> task;
  std::mutex mutex = {};
  std::condition_variable ended = {};
  bool has_ended = false;

  // Takes no heap memory.
  void RunOn(Stream& stream) {
    stream.Enqueue([this](Stream& on) {
      task(on);
      // Notify under the lock: the caller frees this.
      const std::lock_guard<std::mutex> lock(mutex);
      has_ended = true;
      ended.notify_one();
    });
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait(lock, [this] { return has_ended; });
  }
};

}  // namespace

void Event::Record(Stream& stream, uint64_t generation) {
  stream.Enqueue([this, generation](Stream& on) { RecordNow(on, generation); });
}

void Event::Wait(Stream& stream, uint64_t generation) {
  stream.Enqueue([this, generation](Stream& on) { WaitNow(on, generation); });
}

absl::Status Stream::Start() {
  Reserve(kInitialTasks);
  try {
    thread_ = std::thread(&Stream::Run, this);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for stream ", name_, ": ", error.what(),
                     "; raise the limit of processes (ulimit -u) or run fewer ranks here"));
  }
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
  return absl::OkStatus();
}

void Stream::End() {
  if (!thread_.joinable()) return;
  MEGASCALE_CHECK(std::this_thread::get_id() != thread_.get_id());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  queued_.notify_one();
  thread_.join();
  MEGASCALE_CHECK(num_taken_ == num_enqueued_);
}

Stream::~Stream() { MEGASCALE_CHECK(!thread_.joinable()); }

void Stream::Enqueue(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t num_queued = num_enqueued_ - num_taken_;
    if (num_queued == ring_.size()) ReserveLocked(2 * ring_.size());
    ring_[num_enqueued_ % ring_.size()] = std::move(task);
    ++num_enqueued_;
  }
  queued_.notify_one();
}

absl::Status Stream::Synchronize() {
  MEGASCALE_CHECK(std::this_thread::get_id() != thread_.get_id());
  absl::Status status;
  const auto finish = [&status](Stream& stream) { status = stream.Finish(); };
  Call{.task = finish}.RunOn(*this);
  return status;
}

void Stream::RunAndWait(absl::FunctionRef<void()> task) {
  const auto run = [task](Stream&) { task(); };
  Call{.task = run}.RunOn(*this);
}

void Stream::Reserve(size_t num_tasks) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (num_tasks > ring_.size()) ReserveLocked(num_tasks);
}

void Stream::ReserveLocked(size_t num_tasks) {
  std::vector<Task> larger(num_tasks);
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
      const Task task = std::exchange(ring_[num_taken_ % ring_.size()], nullptr);
      ++num_taken_;
      lock.unlock();
      task(*this);
    }  // Frees the task's captures before taking the lock again.
    lock.lock();
  }
}

absl::Duration Stream::NotifiedAt() const { return base::RealClock().Monotonic(); }

}  // namespace megascale::stream
