#include "runtime/plan/check/instruction_place.h"

#include "runtime/base/status.h"

namespace megascale::plan {
namespace {

// Checks that exchanges of a tied embedding are where both ends of the model need them.
absl::Status CheckEnd(const RankIndex& index, const Instruction& instruction) {
  const Operation& operation = OperationOf(instruction.kind());
  const RankPlan& plan = index.plan();
  if (!operation.for_tied_ends) return absl::OkStatus();
  if (!plan.has_tied_ends) {
    return Refuse(plan, instruction, "is in a plan without tied ends of the model");
  }
  const bool is_at_last = IsTransfer(instruction.kind()) && operation.other_chunk < 0;
  if (is_at_last ? index.HasLastChunk() : index.HasFirstChunk()) return absl::OkStatus();
  return Refuse(plan, instruction, "is on stage ", plan.stage(), "; expected that of the ",
                is_at_last ? "last" : "first", " chunk");
}

absl::Status CheckChunk(const RankIndex& index, const Instruction& instruction) {
  const InstructionId id = instruction.id;
  const RankPlan& plan = index.plan();
  const Operation& operation = OperationOf(instruction.kind());
  if (id.chunk() == InstructionId::kNoChunk ? operation.per_chunk : !index.IsMine(id.chunk())) {
    return Refuse(plan, instruction, "is not of a chunk of stage ", plan.stage());
  }
  const bool to_previous = operation.other_chunk < 0;
  if (IsTransfer(instruction.kind()) &&
      (to_previous ? index.IsFirst(id.chunk()) : index.IsLast(id.chunk()))) {
    return Refuse(plan, instruction, "has no chunk at its other end");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlace(const RankIndex& index, const Instruction& instruction) {
  const RankPlan& plan = index.plan();
  const Operation& operation = OperationOf(instruction.kind());
  if (operation.for_evaluation != plan.evaluates) {
    return Refuse(plan, instruction, "is in a plan of ",
                  plan.evaluates ? "an evaluation" : "a training step");
  }
  RETURN_IF_ERROR(CheckChunk(index, instruction));
  RETURN_IF_ERROR(CheckEnd(index, instruction));
  const bool per_microbatch =
      operation.per_microbatch == PerMicrobatch::kAlways ||
      (operation.per_microbatch == PerMicrobatch::kIfGradientsAreSharded && plan.shards_gradients);
  const bool has_microbatch = instruction.id.microbatch() < plan.num_microbatches;
  if (per_microbatch != has_microbatch) {
    return Refuse(plan, instruction, "names no micro-batch of ", plan.num_microbatches);
  }
  const GroupKind expected = MeetingIn(plan.mesh, instruction.kind()).group;
  if (instruction.group != expected) {
    return Refuse(plan, instruction, "communicates in group \"", plan.mesh.Name(instruction.group),
                  "\"; expected \"", plan.mesh.Name(expected), "\"");
  }
  if (operation.op_class == OpClass::kCollective && expected == GroupKind::kNone) {
    return Refuse(plan, instruction, "is a collective; this mesh has no group for it");
  }
  return absl::OkStatus();
}

}  // namespace megascale::plan
