// Shows what this rank does, to those who look from outside: each instruction as a span; in the
// heartbeat slot progress, and, of the instructions that run now on several streams, the one that
// tells most (computing before collectives before transfers). Nothing is allocated.
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
  // The pass that runs is in this exchange with tensor ranks (a piece of its id), or in none (its
  // id).
  void Exchange(plan::InstructionId id) { Run(plan::StreamKind::kCompute, id); }

 private:
  // Makes `id` what runs on `stream`, and shows it.
  void Run(plan::StreamKind stream, plan::InstructionId id);

  telemetry::HeartbeatWriter* const heartbeat_;
  telemetry::SpanWriter* const spans_;
  std::mutex mutex_;
  std::array<plan::InstructionId, plan::kNumStreamKinds> running_ = {};
};

}  // namespace megascale::engine
