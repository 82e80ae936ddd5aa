// The streams of a CPU. The work that a task issues is done inside the call that issues it, so the
// stream's order is the order of its tasks.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/stream/stream.h"

namespace megascale::stream {

class HostStream final : public Stream {
 public:
  // Errors: ResourceExhausted - the system refused a thread.
  static absl::StatusOr<std::unique_ptr<HostStream>> Create(std::string name);
  ~HostStream() override { End(); }

  void Copy(void* to, const void* from, size_t bytes) override;
  void Notify(Notification notification) override { notification(absl::OkStatus()); }
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status FinishWhile(absl::FunctionRef<absl::Status()> /*may_wait*/) override {
    return absl::OkStatus();
  }
  std::unique_ptr<Event> MakeEvent() override;

 private:
  using Stream::Stream;
};

// An event of HostStreams.
class HostEvent final : public Event {
 public:
  void RecordNow(Stream& stream, uint64_t generation) override;
  void WaitNow(Stream& stream, uint64_t generation) override;
  void Release() override;

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t generation_ = 0;
  bool released_ = false;
};

}  // namespace megascale::stream
