// Ordered work on threads of its own, the host's counterpart of CUDA streams and events: a `Stream`
// runs tasks one after another, an `Event` lets one stream wait for another. The executor of a plan
// puts instructions on streams; code of actors never waits here.
//
//   ASSIGN_OR_RETURN(auto compute, Stream::Create("compute"));
//   ASSIGN_OR_RETURN(auto send, Stream::Create("send"));
//   Event produced;
//   compute->Enqueue([&] { Produce(); });
//   produced.Record(*compute, step);
//   produced.Wait(*send, step);                 // `send` sleeps until then; this thread continues
//   send->Enqueue([&] { Send(); });
//
// Memory: the effects of tasks before a Record are visible to tasks after the Wait for it. Cost: a
// task that fits std::function's own storage (two pointers, trivially copyable) never takes heap
// memory, and the queue keeps its storage, so steady work allocates nothing.
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
#include "absl/status/statusor.h"

namespace megascale::stream {

// One thread and its queue. Threads: any, except where a method says otherwise.
class Stream {
 public:
  // Starts the thread; debuggers and /proc show its name, cut to 15 bytes. Errors:
  // ResourceExhausted - the system refused a thread.
  static absl::StatusOr<std::unique_ptr<Stream>> Create(std::string name);

  // Runs the queued tasks, then ends the thread. Requires: not called from its own thread; no task
  // is enqueued any more; tasks end by themselves (an Event that will never be recorded must be
  // released first).
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Adds `task` at the end of the queue. Never waits. The stream's own tasks may call this.
  void Enqueue(std::function<void()> task);

  // Waits until every task that was enqueued before this call has run. Requires: not called from
  // its own thread.
  void Synchronize();

  // Runs `task` on this stream's thread, after what is queued, and returns when it has ended. Takes
  // no heap memory. Requires: not called from its own thread, nor while the stream waits for
  // something that only the caller does.
  void RunAndWait(absl::FunctionRef<void()> task);

  // Makes room, so that up to `num_tasks` queued tasks allocate nothing.
  void Reserve(size_t num_tasks);

  const std::string& name() const { return name_; }

 private:
  explicit Stream(std::string name) : name_(std::move(name)) {}
  void Run();
  void ReserveLocked(size_t num_tasks);

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable queued_;  // a task was added, or `closing_` was set
  std::condition_variable ran_;     // `num_run_` grew while a thread synchronizes
  // Holds `num_enqueued_ - num_taken_` tasks; the first is at `num_taken_ % size`.
  std::vector<std::function<void()>> ring_;
  uint64_t num_enqueued_ = 0;
  uint64_t num_taken_ = 0;
  uint64_t num_run_ = 0;
  int num_synchronizing_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

// A point in a stream's order that other streams can wait for, any number of times. Each use has a
// generation, a number that only grows (a step, say), so a Wait may be enqueued before its Record.
// Ownership: must outlive the tasks that Record and Wait enqueue.
class Event {
 public:
  // Enqueues a task that sets this event to `generation`.
  void Record(Stream& stream, uint64_t generation);

  // Enqueues a task that waits until this event has reached `generation` or more, or was released.
  // The wait has no deadline: the recording stream's task has one (a collective's), and the
  // progress counter shows a stalled process.
  void Wait(Stream& stream, uint64_t generation);

  // Ends every wait, present and future, to give up.
  void Release();

 private:
  void Reach(uint64_t generation);
  void Await(uint64_t generation);

  std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t generation_ = 0;
  bool released_ = false;
};

}  // namespace megascale::stream
