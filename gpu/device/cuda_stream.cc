#include "gpu/device/cuda_stream.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::gpu {
namespace {

constexpr size_t kInitialPending = 16;  // notifications
// How often a wait asks whether it may go on.
constexpr std::chrono::milliseconds kAskInterval(5);
// Threads that wait for an event sleep meanwhile. Those of notifications have times.
constexpr unsigned kNotifyFlags = cudaEventBlockingSync;
constexpr unsigned kOrderFlags = cudaEventDisableTiming | cudaEventBlockingSync;

CudaStream& Own(stream::Stream& stream) {
  auto* const own = dynamic_cast<CudaStream*>(&stream);
  MEGASCALE_CHECK(own != nullptr);
  return *own;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(const Options& options,
                                                               std::string name) {
  std::unique_ptr<CudaStream> stream(new CudaStream(options, std::move(name)));
  RETURN_IF_ERROR(stream->Start());
  return stream;
}

CudaStream::CudaStream(const Options& options, std::string name)
    : Stream(std::move(name)),
      cuda_(*options.cuda),
      device_(options.device),
      uses_graphs_(options.uses_graphs),
      num_ended_(options.num_ended) {}

absl::Status CudaStream::Start() {
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(device_)));
  // Not ordered with CUDA's default stream, which nothing here uses.
  RETURN_IF_ERROR(base::Annotate(
      MEGASCALE_CUDA_CALL(cuda_, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)),
      name()));
  work_ = std::make_unique<StreamWork>(
      StreamWork::Options{.cuda = &cuda_,
                          .stream = stream_,
                          .device = device_,
                          .uses_graphs = uses_graphs_,
                          .on_error = [this](const absl::Status& status) { Issued(status); }});
  RETURN_IF_ERROR(Stream::Start());
  Enqueue([this](Stream&) { Issued(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(device_))); });
  try {
    notifier_ = std::thread(&CudaStream::RunNotifications, this);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for notifications of stream ", name(), ": ", error.what(),
                     "; raise the limit of processes (ulimit -u) or run fewer ranks here"));
  }
  pthread_setname_np(notifier_.native_handle(),
                     absl::StrCat("notify ", name()).substr(0, 15).c_str());
  return absl::OkStatus();
}

// CUDA's errors are of no interest any more: where there are any, Finish has reported them.
CudaStream::~CudaStream() {
  End();
  if (stream_ == nullptr) return;
  if (work_ != nullptr) work_->Finish();
  if (notifier_.joinable()) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    notifier_.join();
  }
  MEGASCALE_CHECK(num_notified_ == num_asked_);
  if (last_event_ != nullptr) free_events_.push_back(last_event_);
  for (const cudaEvent_t event : free_events_) (void)cuda_.cudaEventDestroy(event);
  work_.reset();
  (void)cuda_.cudaStreamDestroy(stream_);
}

void CudaStream::Issued(const absl::Status& status) {
  if (status.ok()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_.ok()) error_ = status;
}

absl::Status CudaStream::error() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void CudaStream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  work_->Issue();
  Issued(MEGASCALE_CUDA_CALL(cuda_, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_)));
}

absl::StatusOr<cudaEvent_t> CudaStream::TakeEvent() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_events_.empty()) {
      const cudaEvent_t event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventCreateWithFlags(&event, kNotifyFlags)));
  return event;
}

void CudaStream::Notify(Notification notification) {
  work_->Issue();
  Pending pending = {.notification = std::move(notification)};
  const absl::StatusOr<cudaEvent_t> event = TakeEvent();
  Issued(event.status());
  if (event.ok()) {
    pending.event = *event;
    Issued(MEGASCALE_CUDA_CALL(cuda_, cudaEventRecord(pending.event, stream_)));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    AddPendingLocked(std::move(pending));
  }
  changed_.notify_all();
}

void CudaStream::AddPendingLocked(Pending pending) {
  if (num_asked_ - num_taken_ == ring_.size()) {
    std::vector<Pending> larger(std::max(kInitialPending, 2 * ring_.size()));
    for (uint64_t i = num_taken_; i < num_asked_; ++i) {
      larger[i % larger.size()] = std::move(ring_[i % ring_.size()]);
    }
    ring_ = std::move(larger);
  }
  ring_[num_asked_++ % ring_.size()] = std::move(pending);
}

void CudaStream::RunNotifications() {
  Issued(MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(device_)));
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return num_taken_ < num_asked_ || closing_; });
    if (num_taken_ == num_asked_) return;
    const Pending first = std::exchange(ring_[num_taken_++ % ring_.size()], {});
    lock.unlock();
    if (first.event != nullptr) {
      Issued(MEGASCALE_CUDA_CALL(cuda_, cudaEventSynchronize(first.event)));
    }
    if (num_ended_ != nullptr) ++*num_ended_;
    const cudaEvent_t before = last_event_;
    TakeTime(first.event);
    first.notification(error());
    lock.lock();
    if (before != nullptr) free_events_.push_back(before);
    // Counted after the call: who has waited for the stream knows that it is over.
    ++num_notified_;
    changed_.notify_all();
  }
}

void CudaStream::TakeTime(cudaEvent_t event) {
  const absl::Duration seen = base::RealClock().Monotonic();
  float milliseconds = 0;
  // A device that has failed tells no times; the failure itself has been reported.
  if (event == nullptr || last_event_ == nullptr ||
      cuda_.cudaEventElapsedTime(&milliseconds, last_event_, event) != cudaSuccess) {
    milliseconds = 0;
    clock_.Restart();
  }
  notified_at_ = clock_.At(absl::Milliseconds(milliseconds), seen);
  last_event_ = event;
}

void CudaStream::TakeErrorOf(const stream::Stream& other) {
  Issued(dynamic_cast<const CudaStream&>(other).error());
}

absl::Status CudaStream::Finish() {
  work_->Issue();
  Issued(MEGASCALE_CUDA_CALL(cuda_, cudaStreamSynchronize(stream_)));
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return num_notified_ == num_asked_; });
  return error_;
}

// The notifying thread waits for the device, so that this one can stop waiting.
absl::Status CudaStream::FinishWhile(absl::FunctionRef<absl::Status()> may_wait) {
  Notify([](const absl::Status& /*stays in error_*/) {});
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t last = num_asked_;
  while (!changed_.wait_for(lock, kAskInterval, [&] { return num_notified_ >= last; })) {
    lock.unlock();
    RETURN_IF_ERROR(may_wait());
    lock.lock();
  }
  return error_;
}

std::unique_ptr<stream::Event> CudaStream::MakeEvent() {
  return std::make_unique<CudaEvent>(&cuda_);
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) (void)cuda_.cudaEventDestroy(event_);
}

void CudaEvent::RecordNow(stream::Stream& stream, uint64_t generation) {
  CudaStream& own = Own(stream);
  own.work().Issue();
  // Notify under the lock: a waiter that continues may free this event.
  const std::lock_guard<std::mutex> lock(mutex_);
  // An earlier generation is reached with the later one that was recorded.
  if (generation < generation_) return;
  if (event_ == nullptr) {
    own.Issued(MEGASCALE_CUDA_CALL(cuda_, cudaEventCreateWithFlags(&event_, kOrderFlags)));
  }
  if (event_ != nullptr) {
    own.Issued(MEGASCALE_CUDA_CALL(cuda_, cudaEventRecord(event_, own.handle())));
  }
  // Published after a failure as well: hosts would wait forever, and the error is on its way.
  generation_ = generation;
  changed_.notify_all();
}

void CudaEvent::WaitNow(stream::Stream& stream, uint64_t generation) {
  CudaStream& own = Own(stream);
  // Before the host waits as well: the device has something to do meanwhile.
  own.work().Issue();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return generation_ >= generation || released_; });
  if (generation_ < generation || event_ == nullptr) return;
  own.Issued(MEGASCALE_CUDA_CALL(cuda_, cudaStreamWaitEvent(own.handle(), event_, 0)));
}

void CudaEvent::Release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

}  // namespace megascale::gpu
