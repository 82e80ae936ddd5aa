// Says in the heartbeat slot what this rank is in: of the instructions that run now, on several
// streams, the one that tells most (computing before collectives before transfers).
#pragma once

#include <array>
#include <mutex>
#include <string>

#include "runtime/plan/instruction.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {

// Threads: any.
class Doing {
 public:
  // `heartbeat` may be null: then nothing is said. Not owned; outlives the object.
  explicit Doing(telemetry::HeartbeatWriter* heartbeat) : heartbeat_(heartbeat) {}

  void Begin(const plan::Instruction& instruction);
  void End(const plan::Instruction& instruction);

 private:
  void Show();

  telemetry::HeartbeatWriter* const heartbeat_;
  std::mutex mutex_;
  std::array<plan::InstructionId, plan::kNumStreamKinds> running_ = {};
};

}  // namespace megascale::engine
