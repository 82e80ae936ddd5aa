// Ordered work on a device, modelled on CUDA's streams and events. Each `Stream` has a host thread
// that runs tasks one after another. A task issues work to the device (operators, copies,
// exchanges). This work runs in the order in which it was issued, perhaps after the task has ended.
// An `Event` makes one stream wait for another. The executor of a plan puts instructions on
// streams; actors never wait for a stream or an event.
//
//   std::unique_ptr<Event> produced = compute->MakeEvent();
//   compute->Enqueue([&](Stream& stream) { ops->Add(a, b, c); });
//   produced->Record(*compute, step);
//   produced->Wait(*send, step);                // `send` waits for it; this thread continues
//   send->Enqueue([&](Stream& stream) { Send(c); });
//
// On a CPU (host_stream.h) the work is done when the call that issues it returns.
//
// Memory: the effects of tasks before a Record, and of the work that they issued, are visible to
// tasks and work after the corresponding Wait. Cost: a task that fits std::function's own storage
// (two pointers, trivially copyable) never takes heap memory, and queues keep their storage, so
// steady work allocates nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace megascale::stream {

class Stream;

// A point in a stream's order that other streams of the same device can wait for, any number of
// times. Each use has a generation, a number that only grows (such as the step), so a Wait may be
// enqueued before its Record. Ownership: an event must outlive the tasks that Record and Wait
// enqueue, and the work that these tasks issue.
class Event {
 public:
  virtual ~Event() = default;

  // Enqueues a task that calls RecordNow, or WaitNow.
  void Record(Stream& stream, uint64_t generation);
  void Wait(Stream& stream, uint64_t generation);

  // Sets this event to `generation` once all work that was issued to `stream` before this call has
  // ended. Requires: called on the stream's thread.
  virtual void RecordNow(Stream& stream, uint64_t generation) = 0;

  // Makes the work that is issued to `stream` from now on wait until this event has reached
  // `generation` or more, or was released. Blocking: the stream's thread waits until RecordNow was
  // called for that generation. On a GPU it then continues, and only the device waits for the
  // recorded work to end. The wait has no deadline of its own, because the recording task has one
  // (the deadline of its collective), and the progress counter reveals a process that stalls.
  // Requires: called on the stream's thread.
  virtual void WaitNow(Stream& stream, uint64_t generation) = 0;

  // Ends all present and future waits for this event, so that streams can end although the event
  // will never be recorded. Threads: any.
  virtual void Release() = 0;
};

// Threads: any, except where a method says otherwise.
class Stream {
 public:
  using Task = std::function<void(Stream& stream)>;
  using Notification = std::function<void(const absl::Status& status)>;

  // Runs the queued tasks and the work that they issued, then ends the thread. Requires: not called
  // from the stream's own thread; no more tasks are enqueued; tasks end by themselves (an Event
  // that will never be recorded must be released first).
  virtual ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Adds `task` at the end of the queue. Never waits. The stream's own tasks may call this.
  void Enqueue(Task task);

  // Waits until every task that was enqueued before this call has run, and the work that these
  // tasks issued has ended. Errors: as Finish. Requires: not called from the stream's own thread.
  absl::Status Synchronize();

  // Runs `task` on this stream's thread, after the queued tasks, and returns when `task` has ended.
  // Work that it issued may still run. Takes no heap memory. Requires: not called from the stream's
  // own thread, nor while the stream waits for something that only the caller does.
  void RunAndWait(absl::FunctionRef<void()> task);

  // Makes room, so that up to `num_tasks` queued tasks allocate nothing.
  void Reserve(size_t num_tasks);

  const std::string& name() const { return name_; }

  // The following methods are for tasks. They are called on this stream's thread, and their work is
  // ordered after the work that was issued before.

  // Copies `bytes` bytes between two places in the device's memory, or between the device's memory
  // and host memory (from device::Device::AllocateHost; other host memory is slower). Until the
  // copy has ended, `from` must not change, and nothing else may use `to`.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;

  // Calls `notification` once the work issued before has ended: with OK, or with that work's error
  // if no earlier notification had this error. `notification` runs on any thread, and must neither
  // block nor issue work.
  virtual void Notify(Notification notification) = 0;

  // For use within a notification of this stream: returns the time on the monotonic clock at which
  // the work before the notification ended. On a device this may be some time before the
  // notification runs.
  virtual absl::Duration NotifiedAt() const;

  // Waits until the work issued before has ended. Errors: Internal - the device failed, now or
  // before; the message names the work if it is known.
  virtual absl::Status Finish() = 0;

  // As Finish, but calls `may_wait` every few milliseconds. If that returns an error, stops waiting
  // and returns the error, while the work may still run.
  virtual absl::Status FinishWhile(absl::FunctionRef<absl::Status()> may_wait) = 0;

  // Makes an event that streams of this device may record and wait for.
  virtual std::unique_ptr<Event> MakeEvent() = 0;

  // If an error of `other`, a stream of the same device, is known by now, it becomes an error of
  // this stream, too. Call it when `other` did work for this stream, because this stream's own
  // calls would not report that work's failure.
  virtual void TakeErrorOf(const Stream& /*other*/) {}

 protected:
  explicit Stream(std::string name) : name_(std::move(name)) {}
  // Starts the thread; debuggers and /proc show its name, cut to 15 bytes. Called once, at the end
  // of creation. Errors: ResourceExhausted - the system refused a thread.
  absl::Status Start();
  // Runs the queued tasks, then ends the thread. Every destructor of a subclass calls it first,
  // while its members still live.
  void End();

 private:
  void Run();
  void ReserveLocked(size_t num_tasks);

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable queued_;  // a task was added, or `closing_` was set
  // Holds `num_enqueued_ - num_taken_` tasks; the first is at `num_taken_ % size`.
  std::vector<Task> ring_;
  uint64_t num_enqueued_ = 0;
  uint64_t num_taken_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace megascale::stream
