#include "runtime/telemetry/heartbeat.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace megascale::telemetry {
namespace {

constexpr size_t kSlotBytes = 192;
constexpr int kReadAttempts = 8;

// A Doing: the instruction; the activity and the peer; what is done and all there is.
using DoingWords = std::array<std::atomic<uint64_t>, 3>;

uint64_t Pack(int low, int high) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}
int Low(uint64_t word) { return static_cast<int32_t>(word & 0xffffffff); }
int High(uint64_t word) { return static_cast<int32_t>(word >> 32); }

}  // namespace

// The current Doing is doing[doing_version % 2]. The writer fills the other buffer, then increases
// the version. So a Doing is whole if its version is unchanged after it was copied, and a writer
// that dies leaves the previous one whole.
struct alignas(64) HeartbeatWriter::Slot {
  std::atomic<int64_t> alive_nanos;  // 0: never
  std::atomic<int64_t> progress_nanos;
  std::atomic<int64_t> step;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> phase;
  std::atomic<uint32_t> doing_version;
  std::array<DoingWords, 2> doing;
  std::atomic<int64_t> device_used_bytes;
  std::atomic<int64_t> device_memory_bytes;
  // Set after the name was written; 0: no device yet.
  std::atomic<uint64_t> device_name_size;
  std::array<std::atomic<uint64_t>, kDeviceNameMax / sizeof(uint64_t)> device_name;

  static Slot* Find(const base::SharedMemory& region, int slot) {
    MEGASCALE_CHECK(slot >= 0);
    MEGASCALE_CHECK(HeartbeatBytes(slot + 1) <= region.size_bytes());
    return reinterpret_cast<Slot*>(region.data()) + slot;
  }

  void ReadDevice(v1::RankStatus* status) const {
    const uint64_t size = device_name_size.load(std::memory_order_acquire);
    if (size == 0) return;
    std::array<char, kDeviceNameMax> name;
    for (size_t i = 0; i < device_name.size(); ++i) {
      const uint64_t word = device_name[i].load(std::memory_order_relaxed);
      std::memcpy(name.data() + i * sizeof(word), &word, sizeof(word));
    }
    v1::DeviceUse* const device = status->mutable_device();
    device->set_name(name.data(), std::min<size_t>(size, name.size()));
    device->set_used_bytes(device_used_bytes.load(std::memory_order_relaxed));
    device->set_memory_bytes(device_memory_bytes.load(std::memory_order_relaxed));
  }

  std::optional<Doing> ReadDoing() const {
    const uint32_t version = doing_version.load(std::memory_order_acquire);
    const DoingWords& words = doing[version % 2];
    const uint64_t instruction = words[0].load(std::memory_order_relaxed);
    const uint64_t activity = words[1].load(std::memory_order_relaxed);
    const uint64_t count = words[2].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (doing_version.load(std::memory_order_relaxed) != version) return std::nullopt;
    return Doing{.activity = static_cast<v1::Activity>(Low(activity)),
                 .instruction = plan::InstructionId::FromPacked(instruction),
                 .peer = High(activity),
                 .done = Low(count),
                 .total = High(count)};
  }
};

namespace {

double AgeSeconds(absl::Duration now, int64_t then_nanos) {
  if (then_nanos == 0) return -1;
  return absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), now - absl::Nanoseconds(then_nanos)));
}

}  // namespace

size_t HeartbeatBytes(int num_slots) { return static_cast<size_t>(num_slots) * kSlotBytes; }

void FormatHeartbeats(base::SharedMemory& region) {
  std::memset(region.data(), 0, region.size_bytes());
}

HeartbeatWriter::HeartbeatWriter(base::SharedMemory* region, int slot)
    : slot_(Slot::Find(*region, slot)) {
  static_assert(sizeof(Slot) == kSlotBytes);
  static_assert(std::atomic<int64_t>::is_always_lock_free);
}

void HeartbeatWriter::Start(int pid) {
  slot_->alive_nanos.store(0, std::memory_order_relaxed);
  slot_->progress_nanos.store(0, std::memory_order_relaxed);
  SetPhase(v1::PHASE_STARTING);
  SetStep(0);
  SetDoing({});
  slot_->device_name_size.store(0, std::memory_order_relaxed);
  SetPid(pid);
}

void HeartbeatWriter::Alive(absl::Duration monotonic_now) {
  slot_->alive_nanos.store(absl::ToInt64Nanoseconds(monotonic_now), std::memory_order_relaxed);
}

void HeartbeatWriter::Progress(absl::Duration monotonic_now) {
  slot_->progress_nanos.store(absl::ToInt64Nanoseconds(monotonic_now), std::memory_order_relaxed);
}

void HeartbeatWriter::SetPid(int pid) { slot_->pid.store(pid, std::memory_order_relaxed); }

void HeartbeatWriter::SetPhase(v1::Phase phase) {
  slot_->phase.store(phase, std::memory_order_relaxed);
}

void HeartbeatWriter::SetStep(int64_t step) { slot_->step.store(step, std::memory_order_relaxed); }

void HeartbeatWriter::SetDoing(const Doing& doing) {
  const uint32_t next = slot_->doing_version.load(std::memory_order_relaxed) + 1;
  // A reader that sees a word written below also sees the version that made this buffer idle.
  std::atomic_thread_fence(std::memory_order_release);
  DoingWords& words = slot_->doing[next % 2];
  words[0].store(doing.instruction.packed(), std::memory_order_relaxed);
  words[1].store(Pack(doing.activity, doing.peer), std::memory_order_relaxed);
  words[2].store(Pack(doing.done, doing.total), std::memory_order_relaxed);
  slot_->doing_version.store(next, std::memory_order_release);
}

void HeartbeatWriter::SetDevice(const v1::DeviceUse& device) {
  slot_->device_used_bytes.store(device.used_bytes(), std::memory_order_relaxed);
  slot_->device_memory_bytes.store(device.memory_bytes(), std::memory_order_relaxed);
  std::array<char, kDeviceNameMax> name = {};
  const size_t size = std::min(device.name().size(), name.size());
  std::memcpy(name.data(), device.name().data(), size);
  for (size_t i = 0; i < slot_->device_name.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, name.data() + i * sizeof(word), sizeof(word));
    slot_->device_name[i].store(word, std::memory_order_relaxed);
  }
  slot_->device_name_size.store(size, std::memory_order_release);
}

void ShowDoing(HeartbeatWriter* heartbeat, const Doing& doing) {
  if (heartbeat == nullptr) return;
  heartbeat->Progress(base::RealClock().Monotonic());
  heartbeat->SetDoing(doing);
}

ShownShare::ShownShare(HeartbeatWriter* heartbeat, v1::Activity activity, int64_t all)
    : heartbeat_(heartbeat), activity_(activity), all_(std::max<int64_t>(all, 1)) {
  Add(0);
}

// What the rank does next is not this activity.
ShownShare::~ShownShare() { ShowDoing(heartbeat_, {}); }

void ShownShare::Add(int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done_ += count;
  const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(all_));
  ShowDoing(heartbeat_,
            {.activity = activity_, .done = static_cast<int>(share * 100), .total = 100});
}

v1::RankStatus ReadHeartbeat(const base::SharedMemory& region, int slot,
                             absl::Duration monotonic_now) {
  const auto* found = HeartbeatWriter::Slot::Find(region, slot);
  v1::RankStatus status;
  status.set_pid(found->pid.load(std::memory_order_relaxed));
  status.set_phase(static_cast<v1::Phase>(found->phase.load(std::memory_order_relaxed)));
  status.set_step(found->step.load(std::memory_order_relaxed));
  status.set_alive_age_seconds(
      AgeSeconds(monotonic_now, found->alive_nanos.load(std::memory_order_relaxed)));
  status.set_progress_age_seconds(
      AgeSeconds(monotonic_now, found->progress_nanos.load(std::memory_order_relaxed)));
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const std::optional<Doing> doing = found->ReadDoing();
    if (!doing.has_value()) continue;
    telemetry::SetDoing(*doing, &status);
    break;
  }
  found->ReadDevice(&status);
  return status;
}

HeartbeatTimer::HeartbeatTimer(HeartbeatWriter* writer, const base::Clock* clock)
    : thread_([this, writer, clock] {
        do {
          writer->Alive(clock->Monotonic());
        } while (!stop_.WaitFor(kAliveInterval));
      }) {
  pthread_setname_np(thread_.native_handle(),
                     "heartbeat");  // which tests/bench/studies/recording.py counts
}

HeartbeatTimer::~HeartbeatTimer() {
  stop_.Notify();
  thread_.join();
}

}  // namespace megascale::telemetry
