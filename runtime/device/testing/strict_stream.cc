#include "runtime/device/testing/strict_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::device {
namespace {

// How often a wait asks whether it may go on.
constexpr std::chrono::milliseconds kAskInterval(5);

StrictStream& Own(stream::Stream& stream) {
  auto* own = dynamic_cast<StrictStream*>(&stream);
  MEGASCALE_CHECK(own != nullptr);
  return *own;
}

}  // namespace

void StrictEvent::RecordNow(stream::Stream& stream, uint64_t generation) {
  Own(stream).Push({.kind = StrictStream::Kind::kRecord, .event = this, .generation = generation});
  const std::lock_guard<std::mutex> lock(device_.mutex_);
  issued_ = std::max(issued_, generation);
  device_.changed_.notify_all();
}

void StrictEvent::WaitNow(stream::Stream& stream, uint64_t generation) {
  {
    std::unique_lock<std::mutex> lock(device_.mutex_);
    device_.changed_.wait(lock, [&] { return issued_ >= generation || released_; });
  }
  Own(stream).Push({.kind = StrictStream::Kind::kWait, .event = this, .generation = generation});
}

void StrictEvent::Release() {
  const std::lock_guard<std::mutex> lock(device_.mutex_);
  released_ = true;
  device_.changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<StrictStream>> StrictStream::Create(StrictDevice* device,
                                                                   std::string name) {
  std::unique_ptr<StrictStream> stream(new StrictStream(device, std::move(name)));
  RETURN_IF_ERROR(stream->Start());
  return stream;
}

StrictStream::StrictStream(StrictDevice* device, std::string name)
    : Stream(std::move(name)), device_(*device), ring_(kEntriesMax) {
  const std::lock_guard<std::mutex> lock(device_.mutex_);
  device_.streams_.push_back(this);
}

StrictStream::~StrictStream() {
  End();
  std::unique_lock<std::mutex> lock(device_.mutex_);
  device_.changed_.wait(lock, [&] { return num_done_ == num_issued_; });
  auto& streams = device_.streams_;
  streams.erase(std::find(streams.begin(), streams.end(), this));
}

void StrictStream::Push(Entry entry) {
  std::unique_lock<std::mutex> lock(device_.mutex_);
  device_.changed_.wait(lock, [&] { return num_issued_ - num_done_ < kEntriesMax; });
  ring_[num_issued_++ % kEntriesMax] = std::move(entry);
  device_.changed_.notify_all();
}

void StrictStream::Issue(const StrictWork& work) { Push({.kind = Kind::kWork, .work = work}); }

void StrictStream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  void* const there = device_.TranslateIfOwn(to, bytes);
  const void* const here = device_.TranslateIfOwn(from, bytes);
  // Addresses of the device are translated, those of the host are not.
  const bool is_host_copy = (there == to) != (here == from);
  if (is_host_copy) {
    const std::lock_guard<std::mutex> lock(device_.mutex_);
    device_.host_bytes_[name()] += static_cast<int64_t>(bytes);
  }
  Push({.kind = Kind::kWork,
        .work = StrictWork([there, here, bytes] { std::memmove(there, here, bytes); }),
        .is_host_copy = is_host_copy});
}

void StrictStream::Notify(Notification notification) {
  Push({.kind = Kind::kNotify, .notification = std::move(notification)});
}

absl::Status StrictStream::Finish() {
  std::unique_lock<std::mutex> lock(device_.mutex_);
  const uint64_t last = num_issued_;
  device_.changed_.wait(lock, [&] { return num_done_ >= last; });
  return EndWait();
}

absl::Status StrictStream::FinishWhile(absl::FunctionRef<absl::Status()> may_wait) {
  std::unique_lock<std::mutex> lock(device_.mutex_);
  const uint64_t last = num_issued_;
  while (!device_.changed_.wait_for(lock, kAskInterval, [&] { return num_done_ >= last; })) {
    lock.unlock();  // `may_wait` may ask the device
    RETURN_IF_ERROR(may_wait());
    lock.lock();
  }
  return EndWait();
}

absl::Status StrictStream::EndWait() {
  ++device_.num_waits_[name()];
  if (!device_.has_failed_) return absl::OkStatus();
  owes_error_ = true;
  return TakeError();
}

std::unique_ptr<stream::Event> StrictStream::MakeEvent() {
  return std::make_unique<StrictEvent>(&device_);
}

bool StrictStream::CanRun() const {
  if (num_done_ == num_issued_) return false;
  const Entry& first = ring_[num_done_ % kEntriesMax];
  return first.kind != Kind::kWait || first.event->released_ ||
         first.event->reached_ >= first.generation;
}

bool StrictStream::IsAtHostCopy() const { return ring_[num_done_ % kEntriesMax].is_host_copy; }

absl::Status StrictStream::TakeError() {
  if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
  if (!std::exchange(owes_error_, false)) return absl::OkStatus();
  return absl::InternalError("the device failed before this work");
}

void StrictStream::RunFirst(std::unique_lock<std::mutex>& lock) {
  Entry& first = ring_[num_done_ % kEntriesMax];
  switch (first.kind) {
    case Kind::kWork:
      if (++device_.num_work_ == device_.options_.fail_at_work) {
        device_.has_failed_ = true;
        error_ = absl::InternalError(
            absl::StrCat("the device failed in work ", device_.num_work_, ", as it was told to"));
      }
      if (device_.has_failed_) {
        owes_error_ = true;
        break;
      }
      lock.unlock();
      first.work.Run();
      lock.lock();
      break;
    case Kind::kRecord:
      first.event->reached_ = std::max(first.event->reached_, first.generation);
      break;
    case Kind::kWait:
      break;
    case Kind::kNotify: {
      const absl::Status status = TakeError();
      // Counted as done after the call: who waits for the stream then knows that the call is over.
      lock.unlock();
      std::exchange(first.notification, nullptr)(status);
      lock.lock();
      break;
    }
  }
  ++num_done_;
  ++device_.num_ended_;
}

}  // namespace megascale::device
