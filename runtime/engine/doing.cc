#include "runtime/engine/doing.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"

namespace megascale::engine {
namespace {

using plan::StreamKind;

constexpr StreamKind kMostTellingFirst[] = {
    StreamKind::kCompute,      StreamKind::kOptimizer,       StreamKind::kDataParallel,
    StreamKind::kLoadBatch,    StreamKind::kReceiveGradient, StreamKind::kReceiveActivation,
    StreamKind::kSendGradient, StreamKind::kSendActivation,
};

absl::string_view Words(plan::OpKind kind) {
  switch (kind) {
    case plan::OpKind::kLoadBatch:
      return "loading the batch";
    case plan::OpKind::kReceiveActivation:
      return "receiving an activation";
    case plan::OpKind::kForward:
      return "forward";
    case plan::OpKind::kSendActivation:
      return "sending an activation";
    case plan::OpKind::kReceiveGradient:
      return "receiving a gradient";
    case plan::OpKind::kBackward:
      return "backward";
    case plan::OpKind::kSendGradient:
      return "sending a gradient";
    case plan::OpKind::kReduceGradients:
      return "reduce-scatter of gradients";
    case plan::OpKind::kReduceNorm:
      return "all-gather of norms";
    case plan::OpKind::kOptimizerStep:
      return "optimizer step";
    case plan::OpKind::kGatherParameters:
      return "all-gather of parameters";
  }
  return "";
}

}  // namespace

void Doing::Begin(const plan::Instruction& instruction) {
  if (heartbeat_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  running_[static_cast<size_t>(instruction.stream)] = instruction.id;
  Show();
}

void Doing::End(const plan::Instruction& instruction) {
  if (heartbeat_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  running_[static_cast<size_t>(instruction.stream)] = plan::InstructionId();
  heartbeat_->Progress(base::RealClock().Monotonic());
  Show();
}

void Doing::Show() {
  for (const StreamKind stream : kMostTellingFirst) {
    const plan::InstructionId id = running_[static_cast<size_t>(stream)];
    if (id == plan::InstructionId()) continue;
    heartbeat_->SetDoing(absl::StrCat(Words(id.operation()), " ", id.ToString()));
    return;
  }
  heartbeat_->SetDoing("between instructions");
}

}  // namespace megascale::engine
