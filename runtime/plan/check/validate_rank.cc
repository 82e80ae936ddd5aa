#include "runtime/plan/check/validate_rank.h"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/happens_before.h"
#include "runtime/plan/check/rank_index.h"
#include "runtime/plan/check/rank_memory.h"
#include "runtime/plan/check/rank_step.h"

namespace megascale::plan {
namespace {

absl::Status CheckDependencies(const RankPlan& plan) {
  const int num_instructions = static_cast<int>(plan.instructions.size());
  absl::flat_hash_map<uint64_t, int> seen;
  for (int i = 0; i < num_instructions; ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (!seen.emplace(instruction.id.packed(), i).second) {
      return Refuse(plan, instruction, "occurs twice");
    }
    if (OperationOf(instruction.kind()).op_class == OpClass::kUnknown) {
      return Refuse(plan, instruction, "is no known operation");
    }
    if (static_cast<int>(instruction.stream) >= kNumStreamKinds ||
        static_cast<int>(instruction.owner) >= kNumOwners) {
      return Refuse(plan, instruction, "has no known stream and owner");
    }
    for (const int producer : instruction.depends_on) {
      if (producer < 0 || producer >= num_instructions) {
        return Refuse(plan, instruction, "depends on instruction ", producer, " of ",
                      num_instructions, ", which does not exist");
      }
    }
    const int buffer = instruction.gradient_buffer;
    if (buffer != kNoBuffer && (buffer < 0 || buffer >= plan.gradient_buffers)) {
      return Refuse(plan, instruction, "uses gradient buffer ", buffer, "; there are ",
                    plan.gradient_buffers);
    }
    if (instruction.activation_slot == kNoSlot) continue;
    const auto index = static_cast<size_t>(plan.IndexOfChunk(instruction.id.chunk()));
    const int num_slots = index < plan.slots.size() ? plan.slots[index] : 0;
    if (instruction.activation_slot < 0 || instruction.activation_slot >= num_slots) {
      return Refuse(plan, instruction, "uses activation slot ", instruction.activation_slot,
                    "; there are ", num_slots);
    }
  }
  return absl::OkStatus();
}

// Checks that each stream belongs to one owner, each channel to one stream, and peers to the group.
absl::Status CheckStreams(const RankPlan& plan) {
  std::array<std::optional<Owner>, kNumStreamKinds> owners;
  std::map<std::pair<GroupKind, std::string>, StreamKind> streams;
  for (const Instruction& instruction : plan.instructions) {
    std::optional<Owner>& owner = owners[static_cast<size_t>(instruction.stream)];
    if (!owner.has_value()) owner = instruction.owner;
    if (*owner != instruction.owner) {
      return Refuse(plan, instruction, "of owner ", Name(instruction.owner), " is on stream ",
                    Name(instruction.stream), ", which belongs to ", Name(*owner));
    }
    if (instruction.group == GroupKind::kNone) continue;
    const auto [channel, is_new] =
        streams.try_emplace({instruction.group, instruction.channel}, instruction.stream);
    if (!is_new && channel->second != instruction.stream) {
      return Refuse(plan, instruction, "uses channel ", instruction.channel, " on stream ",
                    Name(instruction.stream), "; it is used on ", Name(channel->second));
    }
    const int peer = instruction.peer;
    if (IsTransfer(instruction.kind()) &&
        (peer < 0 || peer >= plan.mesh.GroupSize(instruction.group) ||
         peer == plan.mesh.IndexInGroup(instruction.group, plan.rank))) {
      return Refuse(plan, instruction, "has peer ", peer, ", which is no other member of ",
                    plan.mesh.GroupName(instruction.group, plan.rank));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRankPlan(const RankPlan& plan) {
  if (!plan.mesh.Contains(plan.rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", plan.rank, " is not in its mesh of ",
                                                   plan.mesh.world_size(), " ranks"));
  }
  if (plan.instructions.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", plan.rank, ": the plan is empty"));
  }
  RETURN_IF_ERROR(CheckDependencies(plan));
  RETURN_IF_ERROR(CheckStreams(plan));
  return HappensBefore::Create(plan).status();
}

absl::Status ValidateRankStep(const RankPlan& plan) {
  RETURN_IF_ERROR(ValidateRankPlan(plan));
  ASSIGN_OR_RETURN(const HappensBefore order, HappensBefore::Create(plan));
  const RankIndex index(plan, order);
  RETURN_IF_ERROR(CheckRankStep(index));
  return CheckRankMemory(index);
}

}  // namespace megascale::plan
