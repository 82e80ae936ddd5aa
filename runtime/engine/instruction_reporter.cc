#include "runtime/engine/instruction_reporter.h"

#include "absl/time/time.h"
#include "runtime/base/clock.h"

namespace megascale::engine {
namespace {

using plan::StreamKind;

constexpr StreamKind kMostTellingFirst[] = {
    StreamKind::kCompute,      StreamKind::kOptimizer,       StreamKind::kDataParallel,
    StreamKind::kLoadBatch,    StreamKind::kReceiveGradient, StreamKind::kReceiveActivation,
    StreamKind::kSendGradient, StreamKind::kSendActivation,
};

int64_t NowNanos() { return absl::ToInt64Nanoseconds(base::RealClock().Monotonic()); }

constexpr auto kTensorLane = static_cast<uint8_t>(StreamKind::kTensorParallel);

}  // namespace

void InstructionReporter::ShowDevice(const device::Device& device) const {
  if (heartbeat_ == nullptr) return;
  const device::Description description = device.Describe();
  telemetry::v1::DeviceUse use;
  use.set_name(description.name);
  use.set_used_bytes(device.used_bytes());
  use.set_memory_bytes(description.memory_bytes);
  heartbeat_->SetDevice(use);
}

void InstructionReporter::Begin(const plan::Instruction& instruction,
                                const plan::StepContext& context, absl::Duration at) {
  static_assert(plan::kNumStreamKinds <= telemetry::kSpanLanes);
  if (instruction.stream == StreamKind::kCompute) {
    step_ = context;
    exchange_nanos_ = 0;
  }
  if (spans_ != nullptr) {
    spans_->Begin({.begin_nanos = absl::ToInt64Nanoseconds(at),
                   .instruction = instruction.id.packed(),
                   .step = context.step,
                   .bytes = instruction.bytes,
                   .attempt = static_cast<int32_t>(context.attempt),
                   .lane = static_cast<uint8_t>(instruction.stream)});
  }
  Run(instruction.stream, instruction.id);
}

void InstructionReporter::End(const plan::Instruction& instruction, absl::Duration at,
                              const absl::Status& status) {
  if (spans_ != nullptr) {
    spans_->End(static_cast<int>(instruction.stream), absl::ToInt64Nanoseconds(at),
                static_cast<int>(status.code()),
                instruction.stream == StreamKind::kCompute ? exchange_nanos_ : 0);
  }
  if (heartbeat_ != nullptr) heartbeat_->Progress(at);
  Run(instruction.stream, plan::InstructionId());
}

void InstructionReporter::BeginExchange(plan::InstructionId id, int64_t bytes) {
  if (spans_ == nullptr) return;
  spans_->Begin({.begin_nanos = NowNanos(),
                 .instruction = id.packed(),
                 .step = step_.step,
                 .bytes = bytes,
                 .attempt = static_cast<int32_t>(step_.attempt),
                 .lane = kTensorLane});
}

void InstructionReporter::EndExchange(const absl::Status& status) {
  if (spans_ != nullptr) spans_->End(kTensorLane, NowNanos(), static_cast<int>(status.code()));
}

void InstructionReporter::BeginWait(plan::InstructionId exchange) {
  wait_begin_nanos_ = NowNanos();
  Run(StreamKind::kCompute, exchange);
}

void InstructionReporter::EndWait(plan::InstructionId pass) {
  exchange_nanos_ += NowNanos() - wait_begin_nanos_;
  Run(StreamKind::kCompute, pass);
}

void InstructionReporter::Run(plan::StreamKind stream, plan::InstructionId id) {
  if (heartbeat_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  running_[static_cast<size_t>(stream)] = id;
  for (const StreamKind kind : kMostTellingFirst) {
    const plan::InstructionId running = running_[static_cast<size_t>(kind)];
    if (running == plan::InstructionId()) continue;
    heartbeat_->SetDoing({.activity = telemetry::v1::ACTIVITY_INSTRUCTION, .instruction = running});
    return;
  }
  heartbeat_->SetDoing({.activity = telemetry::v1::ACTIVITY_BETWEEN_INSTRUCTIONS});
}

}  // namespace megascale::engine
