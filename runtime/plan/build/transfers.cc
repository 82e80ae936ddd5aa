#include "runtime/plan/build/transfers.h"

#include <algorithm>
#include <utility>

#include "runtime/plan/build/channels.h"

namespace megascale::plan {

size_t Transfers::NumTogether(absl::Span<const ComputeItem> next) const {
  const PlanOptions& options = draft_.options();
  const bool pairs = !options.overlap.p2p_communication && options.chunks_per_stage > 1 &&
                     next.size() > 1 && next[0].kind == OpKind::kForward &&
                     next[1].kind == OpKind::kBackward;
  return pairs ? 2 : 1;
}

void Transfers::BeginTogether() {
  if (!draft_.options().overlap.p2p_communication) {
    for (const int send : sends_) draft_.AwaitBeforeNextPass(send);
  }
  sends_.clear();
  computed_before_ = draft_.last_computed();
}

int Transfers::AddReceive(OpKind receive, InstructionId pass, int slot, std::vector<int> inputs) {
  Instruction instruction = Transfer(receive, pass, slot);
  instruction.depends_on = std::move(inputs);
  if (!draft_.options().overlap.p2p_communication && computed_before_ >= 0) {
    instruction.depends_on.push_back(computed_before_);
  }
  return draft_.Add(std::move(instruction));
}

int Transfers::AddSend(OpKind send, InstructionId pass, int slot) {
  Instruction instruction = Transfer(send, pass, slot);
  instruction.depends_on = {draft_.last_computed()};
  sends_.push_back(draft_.Add(std::move(instruction)));
  return sends_.back();
}

// Returns the instruction at one end of a micro-batch's way to a neighbouring chunk.
Instruction Transfers::Transfer(OpKind kind, InstructionId pass, int slot) const {
  const Operation& operation = OperationOf(kind);
  const int other = pass.chunk() + operation.other_chunk;
  const int lower = std::min(pass.chunk(), other);
  const int num_stages = draft_.options().mesh.pipeline_size();
  Instruction transfer = Draft::OfOperation(InstructionId(kind, pass.chunk(), pass.microbatch()));
  transfer.group = operation.meeting.group;
  transfer.channel = BoundaryChannel(kind, lower % num_stages, num_stages);
  transfer.peer = other % num_stages;
  transfer.activation_slot = slot;
  transfer.bytes = draft_.Cost(lower).output_bytes;
  return transfer;
}

}  // namespace megascale::plan
