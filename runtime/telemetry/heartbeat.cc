#include "runtime/telemetry/heartbeat.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>

#include "runtime/base/check.h"

namespace megascale::telemetry {
namespace {

constexpr size_t kDoingWords = kDoingBytesMax / sizeof(uint64_t);
constexpr int kReadAttempts = 8;

using DoingWords = std::array<std::atomic<uint64_t>, kDoingWords>;

}  // namespace

// The current text is doing[doing_version % 2]. The writer fills the other buffer, then increases
// the version. So a text is whole if its version is unchanged after it was copied, and a writer
// that dies leaves the previous text whole.
struct alignas(64) HeartbeatWriter::Slot {
  std::atomic<int64_t> alive_nanos;  // 0: never
  std::atomic<int64_t> progress_nanos;
  std::atomic<int64_t> step;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> phase;
  std::atomic<uint32_t> doing_version;
  std::array<DoingWords, 2> doing;

  static Slot* Find(const base::SharedMemory& region, int slot) {
    MEGASCALE_CHECK(slot >= 0);
    MEGASCALE_CHECK(HeartbeatBytes(slot + 1) <= region.size_bytes());
    return reinterpret_cast<Slot*>(region.data()) + slot;
  }

  bool CopyDoing(std::string* text) const {
    const uint32_t version = doing_version.load(std::memory_order_acquire);
    const DoingWords& words = doing[version % 2];
    std::array<uint64_t, kDoingWords> copy;
    for (size_t i = 0; i < kDoingWords; ++i) copy[i] = words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (doing_version.load(std::memory_order_relaxed) != version) return false;
    std::array<char, kDoingBytesMax> bytes;
    std::memcpy(bytes.data(), copy.data(), bytes.size());
    text->assign(bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0'));
    return true;
  }
};

namespace {

double AgeSeconds(absl::Duration now, int64_t then_nanos) {
  if (then_nanos == 0) return -1;
  return absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), now - absl::Nanoseconds(then_nanos)));
}

}  // namespace

size_t HeartbeatBytes(int num_slots) {
  constexpr size_t kSlotBytes = 256;
  return static_cast<size_t>(num_slots) * kSlotBytes;
}

void FormatHeartbeats(base::SharedMemory& region) {
  std::memset(region.data(), 0, region.size_bytes());
}

HeartbeatWriter::HeartbeatWriter(base::SharedMemory* region, int slot)
    : slot_(Slot::Find(*region, slot)) {
  static_assert(sizeof(Slot) == 256);
  static_assert(std::atomic<int64_t>::is_always_lock_free);
}

void HeartbeatWriter::Start(int pid) {
  slot_->alive_nanos.store(0, std::memory_order_relaxed);
  slot_->progress_nanos.store(0, std::memory_order_relaxed);
  SetPhase(v1::PHASE_STARTING);
  SetStep(0);
  SetDoing("");
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

void HeartbeatWriter::SetDoing(absl::string_view text) {
  std::array<char, kDoingBytesMax> bytes{};
  const size_t size = std::min(text.size(), bytes.size());
  std::transform(text.begin(), text.begin() + size, bytes.begin(),
                 [](char byte) { return byte >= ' ' && byte <= '~' ? byte : '?'; });
  std::array<uint64_t, kDoingWords> words;
  std::memcpy(words.data(), bytes.data(), bytes.size());

  const uint32_t next = slot_->doing_version.load(std::memory_order_relaxed) + 1;
  // A reader that sees a word written below also sees the version that made this buffer idle.
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kDoingWords; ++i) {
    slot_->doing[next % 2][i].store(words[i], std::memory_order_relaxed);
  }
  slot_->doing_version.store(next, std::memory_order_release);
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
    if (found->CopyDoing(status.mutable_doing())) break;
  }
  return status;
}

HeartbeatTimer::HeartbeatTimer(HeartbeatWriter* writer, const base::Clock* clock)
    : thread_([this, writer, clock] {
        do {
          writer->Alive(clock->Monotonic());
        } while (!stop_.WaitFor(kAliveInterval));
      }) {}

HeartbeatTimer::~HeartbeatTimer() {
  stop_.Give();
  thread_.join();
}

}  // namespace megascale::telemetry
