// Heartbeat slots: the state that each process of an attempt shows, in a SharedMemory that the
// agent makes and reads. A slot has one writing process. Every field is an atomic, and values of
// several words have two buffers. So a reader sees whole values without waiting, even if the writer
// was killed in the middle of a write. Times: base::Clock::Monotonic, comparable between the
// processes of one machine. Ownership: writers and readers borrow the region. Start with
// HeartbeatWriter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/stop_signal.h"
#include "runtime/telemetry/doing.h"

namespace megascale::telemetry {

// The interval at which a HeartbeatTimer calls Alive.
inline constexpr absl::Duration kAliveInterval = absl::Milliseconds(200);

// Returns the size of a region with `num_slots` slots.
size_t HeartbeatBytes(int num_slots);

// Empties all slots. Call it once, before other processes get the region.
void FormatHeartbeats(base::SharedMemory& region);

// Writes one slot.
// Threads: any thread may call Alive, SetPid, SetPhase, SetStep and Progress; only one thread at a
// time may call SetDoing, and only one SetDevice. Cost: a few stores; no system call.
class HeartbeatWriter {
 public:
  // Bytes of a device's name that readers get; the rest is cut off.
  static constexpr size_t kDeviceNameMax = 56;

  // Requires: `region` holds at least `slot` + 1 slots and outlives the writer.
  HeartbeatWriter(base::SharedMemory* region, int slot);

  // Prepares the slot for a new process: no heartbeat, no progress, phase STARTING, step 0, no
  // activity, no device.
  void Start(int pid);

  void Alive(absl::Duration monotonic_now);
  void Progress(absl::Duration monotonic_now);
  void SetPid(int pid);
  void SetPhase(telemetry::v1::Phase phase);
  void SetStep(int64_t step);
  void SetDoing(const Doing& doing);
  // Shows the device of this rank. Call it again whenever the device's memory has changed. The name
  // must stay the same.
  void SetDevice(const telemetry::v1::DeviceUse& device);

 private:
  struct Slot;
  friend telemetry::v1::RankStatus ReadHeartbeat(const base::SharedMemory& region, int slot,
                                                 absl::Duration monotonic_now);
  Slot* slot_;
};

// Shows what a rank does now, and that it makes progress. Does nothing if `heartbeat` is null.
void ShowDoing(HeartbeatWriter* heartbeat, const Doing& doing);

// Shows, until it is destroyed, how much of a long activity is done, in percent. Threads: several
// may call it at the same time.
class ShownShare {
 public:
  // Shows 0 %. `heartbeat`: null, or it outlives this object; during this time nothing else may
  // show there what the rank does. `all`: how much there is to do, in the unit of Add.
  ShownShare(HeartbeatWriter* heartbeat, telemetry::v1::Activity activity, int64_t all);
  ~ShownShare();
  ShownShare(const ShownShare&) = delete;
  ShownShare& operator=(const ShownShare&) = delete;

  // Shows progress, and that `count` more is done.
  void Add(int64_t count);

 private:
  HeartbeatWriter* const heartbeat_;
  const telemetry::v1::Activity activity_;
  const int64_t all_;
  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

// Returns the content of a slot at `monotonic_now`. `rank` is not in the slot; the caller knows it.
// Ages are -1 until the process has written its first heartbeat; until then, limits on starting
// apply. If the writer changes the activity faster than it can be read, the result leaves the
// activity out.
telemetry::v1::RankStatus ReadHeartbeat(const base::SharedMemory& region, int slot,
                                        absl::Duration monotonic_now);

// A thread that calls Alive at once and then every kAliveInterval, until it is destroyed.
class HeartbeatTimer {
 public:
  // Requires: `writer` and `clock` outlive the timer.
  HeartbeatTimer(HeartbeatWriter* writer, const base::Clock* clock);
  ~HeartbeatTimer();
  HeartbeatTimer(const HeartbeatTimer&) = delete;
  HeartbeatTimer& operator=(const HeartbeatTimer&) = delete;

 private:
  base::StopSignal stop_;
  std::thread thread_;
};

}  // namespace megascale::telemetry
