#include "runtime/stream/host_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/status.h"

namespace megascale::stream {

absl::StatusOr<std::unique_ptr<HostStream>> HostStream::Create(std::string name) {
  std::unique_ptr<HostStream> stream(new HostStream(std::move(name)));
  RETURN_IF_ERROR(stream->Start());
  return stream;
}

void HostStream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::unique_ptr<Event> HostStream::MakeEvent() { return std::make_unique<HostEvent>(); }

void HostEvent::RecordNow(Stream& /*stream*/, uint64_t generation) {
  // Notify under the lock: a waiter that continues may free this event.
  std::lock_guard<std::mutex> lock(mutex_);
  generation_ = std::max(generation_, generation);
  reached_.notify_all();
}

void HostEvent::WaitNow(Stream& /*stream*/, uint64_t generation) {
  std::unique_lock<std::mutex> lock(mutex_);
  reached_.wait(lock, [&] { return generation_ >= generation || released_; });
}

void HostEvent::Release() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
  }
  reached_.notify_all();
}

}  // namespace megascale::stream
