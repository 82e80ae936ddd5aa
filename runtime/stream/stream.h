// Ordered work on threads of its own: `Stream` runs tasks one after another, `Event` lets one
// stream wait for another. The host's counterpart of CUDA streams and events. A plan's executor
// puts instructions on them; nothing that an actor runs ever waits here.
//
//   ASSIGN_OR_RETURN(auto compute, Stream::Create("compute"));
//   ASSIGN_OR_RETURN(auto send, Stream::Create("send"));
//   Event produced;
//   compute->Enqueue([&] { Produce(); });
//   produced.Record(*compute, step);
//   produced.Wait(*send, step);                 // `send` sleeps until then; this thread goes on
//   send->Enqueue([&] { Send(); });
//
// Memory: what ran before a Record is visible to what runs after the Wait for it.
// Cost: tasks that fit std::function's own storage (two pointers, trivially copyable) are never put
// on the heap, and the queue keeps its storage, so steady work allocates nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace megascale::stream {

class Event;

// What a stream's thread is at.
struct Standing {
  bool blocked = false;  // nothing is queued, or it waits for an Event that has not come
  uint64_t num_run = 0;  // tasks that have ended, with those that record and wait
};

// One thread and its queue. Threads: methods may be called from any thread, but for what they say.
class Stream {
 public:
  // Starts the thread; its name, cut to 15 bytes, is shown by debuggers and /proc.
  // Errors: ResourceExhausted - the system gave no thread.
  static absl::StatusOr<std::unique_ptr<Stream>> Create(std::string name);

  // Runs what is queued, then ends the thread. Requires: not called from its own thread; nothing is
  // enqueued any more; tasks end by themselves (an Event that nobody records must be released
  // first).
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Adds `task` behind what is queued. Never waits for the queue. Its own tasks may call this.
  void Enqueue(std::function<void()> task);

  // Blocking: until everything that was enqueued before this call has run. Requires: not called
  // from its own thread.
  void Synchronize();

  // Makes room, so that up to `num_tasks` queued at once allocate nothing.
  void Reserve(size_t num_tasks);

  // For a clock that stands still while any thread can go on.
  Standing standing() const;

  const std::string& name() const { return name_; }

 private:
  friend class Event;

  explicit Stream(std::string name) : name_(std::move(name)) {}
  void Run();
  void SetAwaited(const Event* event, uint64_t generation);
  void ReserveLocked(size_t num_tasks);

  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable queued_;  // a task was added, or `closing_`
  std::condition_variable ran_;     // `num_run_` grew while somebody synchronizes
  // Holds `num_enqueued_ - num_taken_` tasks, the first at `num_taken_ % size`.
  std::vector<std::function<void()>> ring_;
  uint64_t num_enqueued_ = 0;
  uint64_t num_taken_ = 0;
  uint64_t num_run_ = 0;
  int num_synchronizing_ = 0;
  const Event* awaited_ = nullptr;  // by the task that runs
  uint64_t awaited_generation_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

// A point in a stream's order that others can wait for, again and again: each use has a generation,
// a number that only grows (a step, say), so a Wait may be asked for before the Record that it is
// for.
// Ownership: outlives the tasks that Record and Wait enqueue.
class Event {
 public:
  // Enqueues: this event reached `generation`.
  void Record(Stream& stream, uint64_t generation);

  // Enqueues: `stream` goes on only when this event reached `generation` or more, or was released.
  // The wait has no deadline of its own: what is waited for has one (a collective's), and a process
  // that stands still is noticed by its progress counter.
  void Wait(Stream& stream, uint64_t generation);

  // Ends every wait, present and future: for giving up.
  void Release();

 private:
  void Reach(uint64_t generation);
  void Await(uint64_t generation);
  bool Reached(uint64_t generation) const;
  bool ReachedLocked(uint64_t generation) const { return generation_ >= generation || released_; }

  friend class Stream;

  mutable std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t generation_ = 0;
  bool released_ = false;
};

}  // namespace megascale::stream
