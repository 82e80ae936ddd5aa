// Shows what this rank does, to those who look from outside: each instruction as a span; in the
// heartbeat slot progress, and, of the instructions that run now on several streams, the one that
// tells most (computing before collectives before transfers). Exchanges of tensor ranks within a
// pass are spans of a lane of their own, and the pass's says how long it waited for them. Nothing
// is allocated.
#pragma once

#include <array>
#include <mutex>

#include "absl/status/status.h"
#include "runtime/plan/executor.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::engine {

// Threads: any; the instructions of one stream from one thread at a time.
class Doing {
 public:
  // Either may be null: then it is not written. Not owned; they outlive the object.
  Doing(telemetry::HeartbeatWriter* heartbeat, telemetry::SpanWriter* spans)
      : heartbeat_(heartbeat), spans_(spans) {}

  void Begin(const plan::Instruction& instruction, const plan::StepContext& context);
  void End(const plan::Instruction& instruction, const absl::Status& status);

  // The pass that runs exchanges `bytes` with its tensor ranks; `id`: its own, with the piece.
  void BeginExchange(plan::InstructionId id, int64_t bytes);
  void EndExchange(const absl::Status& status);
  // The pass waits for an exchange, and goes on. Threads: the one that runs the pass.
  void BeginWait(plan::InstructionId exchange);
  void EndWait(plan::InstructionId pass);

 private:
  // Makes `id` what runs on `stream`, and shows it.
  void Run(plan::StreamKind stream, plan::InstructionId id);

  telemetry::HeartbeatWriter* const heartbeat_;
  telemetry::SpanWriter* const spans_;
  plan::StepContext step_;  // of the instruction that computes
  int64_t wait_begin_nanos_ = 0;
  int64_t exchange_nanos_ = 0;  // that it has waited for exchanges
  std::mutex mutex_;
  std::array<plan::InstructionId, plan::kNumStreamKinds> running_ = {};
};

}  // namespace megascale::engine
