// Streams and events of the strict device: bounded queues of entries that the device's thread runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/device/testing/strict_device.h"
#include "runtime/stream/stream.h"

namespace megascale::device {

// Work with its arguments, without heap memory.
class StrictWork {
 public:
  StrictWork() = default;
  template <typename Function>
  explicit StrictWork(const Function& function)
      : run_([](const void* bytes) { (*static_cast<const Function*>(bytes))(); }) {
    static_assert(std::is_trivially_copyable_v<Function>);
    static_assert(sizeof(Function) <= kBytes);
    std::memcpy(bytes_.data(), &function, sizeof(Function));
  }
  void Run() const { run_(bytes_.data()); }

 private:
  static constexpr size_t kBytes = 640;
  alignas(16) std::array<std::byte, kBytes> bytes_ = {};
  void (*run_)(const void*) = nullptr;
};

class StrictEvent final : public stream::Event {
 public:
  explicit StrictEvent(StrictDevice* device) : device_(*device) {}
  void RecordNow(stream::Stream& stream, uint64_t generation) override;
  void WaitNow(stream::Stream& stream, uint64_t generation) override;
  void Release() override;

 private:
  friend class StrictDevice;
  friend class StrictStream;

  StrictDevice& device_;
  // Guarded by the device's mutex.
  uint64_t issued_ = 0;   // the greatest generation that a record was issued for
  uint64_t reached_ = 0;  // the greatest that the device has reached
  bool released_ = false;
};

class StrictStream final : public stream::Stream {
 public:
  static absl::StatusOr<std::unique_ptr<StrictStream>> Create(StrictDevice* device,
                                                              std::string name);
  ~StrictStream() override;

  void Copy(void* to, const void* from, size_t bytes) override;
  void Notify(Notification notification) override;
  absl::Status Finish() override;
  absl::Status FinishWhile(absl::FunctionRef<absl::Status()> may_wait) override;
  std::unique_ptr<stream::Event> MakeEvent() override;

  // Queues work. Waits while the queue is full.
  void Issue(const StrictWork& work);

 private:
  friend class StrictDevice;
  friend class StrictEvent;

  enum class Kind : uint8_t { kWork, kRecord, kWait, kNotify };
  struct Entry {
    Kind kind = Kind::kWork;
    StrictWork work = {};
    bool is_host_copy = false;  // between host and device
    StrictEvent* event = nullptr;
    uint64_t generation = 0;
    Notification notification = nullptr;
  };
  static constexpr size_t kEntriesMax = 512;

  StrictStream(StrictDevice* device, std::string name);
  void Push(Entry entry);
  // The following with the device's mutex held; RunFirst releases it meanwhile.
  bool CanRun() const;
  bool IsAtHostCopy() const;  // requires CanRun
  void RunFirst(std::unique_lock<std::mutex>& lock);
  // Ends a wait for the stream's work that has come to its end.
  absl::Status EndWait();
  // Returns the error that the next notification has to bring.
  absl::Status TakeError();

  StrictDevice& device_;
  std::vector<Entry> ring_;
  uint64_t num_issued_ = 0;
  uint64_t num_done_ = 0;
  absl::Status error_;  // of this stream's work; not yet in a notification
  bool owes_error_ = false;
};

}  // namespace megascale::device
