// Streams and events of a CUDA device. A stream has three parts: the thread of stream::Stream,
// whose tasks issue work; CUDA's stream, in which the work is ordered; and a second thread, which
// waits for CUDA's events in order and calls notifications. (CUDA's host functions could not
// replace the second thread: after an error, CUDA no longer calls them.)
//
// Errors: after a failure, a device stays failed. Notify and Finish report the first error that a
// call on this stream returned, or that the device reported during a wait, from then on, because it
// is unknown which work had ended before the failure. Internal - the device failed;
// ResourceExhausted - an operator found no memory for its workspace.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/device/event_clock.h"
#include "gpu/graphs/stream_work.h"
#include "runtime/stream/stream.h"

namespace megascale::gpu {

class CudaStream final : public stream::Stream {
 public:
  struct Options {
    const cuda::CudaApi* cuda = nullptr;  // outlives the stream
    int device = 0;                       // the index of its device
    bool uses_graphs = false;             // for the operators' work
    // Counts the notifications that the device has reached; outlives the stream. Null: they are not
    // counted.
    std::atomic<uint64_t>* num_ended = nullptr;
  };
  // Errors: ResourceExhausted - the system refused a thread; Internal - CUDA refused a stream.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(const Options& options,
                                                            std::string name);
  ~CudaStream() override;

  void Copy(void* to, const void* from, size_t bytes) override;
  void Notify(Notification notification) override;
  // From CUDA's events, without waiting for the device.
  absl::Duration NotifiedAt() const override { return notified_at_; }
  // Also waits for notifications that were requested before.
  absl::Status Finish() override;
  absl::Status FinishWhile(absl::FunctionRef<absl::Status()> may_wait) override;
  void TakeErrorOf(const stream::Stream& other) override;
  std::unique_ptr<stream::Event> MakeEvent() override;

  // The following methods are for operators and communicators, which issue their work on this
  // stream's thread.

  // Returns the work that operators give to this stream. All other calls of the stream first issue
  // this work.
  StreamWork& work() { return *work_; }
  // Returns CUDA's stream. Before you put something on it, issue work().
  cudaStream_t handle() const { return stream_; }
  int device() const { return device_; }
  // Records the result of a call that issued work to this stream; keeps the first error.
  void Issued(const absl::Status& status);

 private:
  // A notification that waits for its event.
  struct Pending {
    cudaEvent_t event = nullptr;  // null: CUDA refused an event
    Notification notification = nullptr;
  };

  CudaStream(const Options& options, std::string name);
  absl::Status Start();
  // Returns an event that is not in use, or a new event.
  absl::StatusOr<cudaEvent_t> TakeEvent();
  void AddPendingLocked(Pending pending);
  void RunNotifications();
  // Sets notified_at_. `event`: the event that the notification waited for.
  void TakeTime(cudaEvent_t event);
  absl::Status error() const;

  const cuda::CudaApi& cuda_;
  const int device_;
  const bool uses_graphs_;
  std::atomic<uint64_t>* const num_ended_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<StreamWork> work_;

  // Used by the notifying thread alone.
  EventClock clock_;
  cudaEvent_t last_event_ = nullptr;  // that clock_ knows
  absl::Duration notified_at_ = absl::ZeroDuration();

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  absl::Status error_;
  // Holds `num_asked_ - num_taken_` notifications; the first is at `num_taken_ % size`.
  std::vector<Pending> ring_;
  uint64_t num_asked_ = 0;
  uint64_t num_taken_ = 0;
  uint64_t num_notified_ = 0;  // whose call has returned
  std::vector<cudaEvent_t> free_events_;
  bool closing_ = false;
  std::thread notifier_;
};

// An event of CudaStreams of one device. It has one CUDA event, which each generation records
// again. So a wait for a generation may wait for a later generation that was recorded in the
// meantime. The later work was issued before the wait and cannot depend on it, so the wait only
// takes longer, which is allowed.
class CudaEvent final : public stream::Event {
 public:
  explicit CudaEvent(const cuda::CudaApi* cuda) : cuda_(*cuda) {}
  ~CudaEvent() override;

  void RecordNow(stream::Stream& stream, uint64_t generation) override;
  void WaitNow(stream::Stream& stream, uint64_t generation) override;
  void Release() override;

 private:
  const cuda::CudaApi& cuda_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  cudaEvent_t event_ = nullptr;  // made by the first record
  uint64_t generation_ = 0;      // the greatest that was recorded
  bool released_ = false;
};

}  // namespace megascale::gpu
