// Shows to other processes what this rank is doing. Each instruction becomes a span. The heartbeat
// slot shows progress and one running instruction; when several streams run one, the slot shows the
// most telling instruction (computing before collectives before transfers). Exchanges between
// tensor ranks within a pass are spans on a lane of their own, and the span of the pass says how
// long it waited for them. Nothing is allocated.
#pragma once

#include <array>
#include <mutex>

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::engine {

// Threads: any; the instructions of one stream from one thread at a time.
class InstructionReporter {
 public:
  // Either may be null and is then not written. Borrowed: both must outlive this object.
  InstructionReporter(telemetry::HeartbeatWriter* heartbeat, telemetry::SpanWriter* spans)
      : heartbeat_(heartbeat), spans_(spans) {}

  // Shows the device and the memory that this rank has taken there. Steps take none.
  void ShowDevice(const device::Device& device) const;

  // `at`: when, on the monotonic clock.
  void Begin(const plan::Instruction& instruction, const plan::StepContext& context,
             absl::Duration at);
  void End(const plan::Instruction& instruction, absl::Duration at, const absl::Status& status);

  // The running pass begins to exchange `bytes` with its tensor ranks. `id`: the id of the
  // exchange, which is the pass's id with a piece.
  void BeginExchange(plan::InstructionId id, int64_t bytes);
  void EndExchange(const absl::Status& status);
  // The pass begins to wait for an exchange, and continues. Threads: the one that runs the pass.
  void BeginWait(plan::InstructionId exchange);
  void EndWait(plan::InstructionId pass);

 private:
  // Records `id` as running on `stream`, and updates the heartbeat slot.
  void Run(plan::StreamKind stream, plan::InstructionId id);

  telemetry::HeartbeatWriter* const heartbeat_;
  telemetry::SpanWriter* const spans_;
  plan::StepContext step_;  // the step of the running pass
  int64_t wait_begin_nanos_ = 0;
  int64_t exchange_nanos_ = 0;  // time that the running pass has waited for exchanges
  std::mutex mutex_;
  std::array<plan::InstructionId, plan::kNumStreamKinds> running_ = {};
};

}  // namespace megascale::engine
