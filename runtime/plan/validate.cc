#include "runtime/plan/validate.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/happens_before.h"
#include "runtime/plan/rendezvous.h"

namespace megascale::plan {
namespace {

template <typename... Parts>
absl::Status Refuse(const RankPlan& plan, const Instruction& instruction, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", plan.rank, ": ", instruction.id.ToString(), " ", parts...));
}

bool IsPointToPoint(OpKind kind) {
  return kind == OpKind::kSendActivation || kind == OpKind::kReceiveActivation ||
         kind == OpKind::kSendGradient || kind == OpKind::kReceiveGradient;
}
bool IsCollective(OpKind kind) {
  return kind == OpKind::kReduceGradients || kind == OpKind::kReduceNorm ||
         kind == OpKind::kGatherParameters;
}

absl::Status CheckDependencies(const RankPlan& plan) {
  const int num_instructions = static_cast<int>(plan.instructions.size());
  absl::flat_hash_map<uint64_t, int> seen;
  for (int i = 0; i < num_instructions; ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (!seen.emplace(instruction.id.packed(), i).second) {
      return Refuse(plan, instruction, "occurs twice");
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
    if (instruction.activation_slot != kNoSlot &&
        (instruction.activation_slot < 0 ||
         instruction.activation_slot >= plan.num_activation_slots)) {
      return Refuse(plan, instruction, "uses activation slot ", instruction.activation_slot,
                    "; there are ", plan.num_activation_slots);
    }
  }
  return absl::OkStatus();
}

// Streams belong to one owner, channels to one stream, peers to the group.
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
    if (IsPointToPoint(instruction.kind()) &&
        (peer < 0 || peer >= plan.mesh.GroupSize(instruction.group) ||
         peer == plan.mesh.IndexInGroup(instruction.group, plan.rank))) {
      return Refuse(plan, instruction, "has peer ", peer, ", which is no other member of ",
                    plan.mesh.GroupName(instruction.group, plan.rank));
    }
  }
  return absl::OkStatus();
}

// One rank's plan as a training step, apart from how it meets others.
class RankCheck {
 public:
  RankCheck(const RankPlan& plan, const HappensBefore& order) : plan_(plan), order_(order) {
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      index_.emplace(plan.instructions[i].id.packed(), static_cast<int>(i));
    }
  }

  absl::Status Check() const {
    RETURN_IF_ERROR(CheckKinds());
    RETURN_IF_ERROR(CheckPasses());
    RETURN_IF_ERROR(CheckShard());
    return CheckSlots();
  }

 private:
  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }
  bool IsMine(int chunk) const {
    return chunk < plan_.num_chunks && chunk % plan_.mesh.pipeline_size() == plan_.stage();
  }

  absl::Status Missing(InstructionId id) const {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", plan_.rank, ": ", id.ToString(),
                     " is missing: every micro-batch passes every chunk once each way, and every "
                     "chunk's parameters are reduced, stepped and gathered once"));
  }

  // `consumer` begins after `producer` has ended.
  absl::Status Needs(InstructionId consumer, InstructionId producer) const {
    const auto later = index_.find(consumer.packed());
    if (later == index_.end()) return Missing(consumer);
    const Instruction& instruction = plan_.instructions[later->second];
    const auto earlier = index_.find(producer.packed());
    if (earlier == index_.end()) {
      return Refuse(plan_, instruction, "needs ", producer.ToString(),
                    ", which is not in the plan");
    }
    if (order_.Before(earlier->second, later->second)) return absl::OkStatus();
    return Refuse(plan_, instruction, "uses what ", producer.ToString(),
                  " makes, and does not wait for it");
  }

  // The rank's chunks, where an operation has one, and communication where it belongs.
  absl::Status CheckKinds() const {
    for (const Instruction& instruction : plan_.instructions) {
      const InstructionId id = instruction.id;
      const OpKind kind = instruction.kind();
      if (id.chunk() == InstructionId::kNoChunk ? kind != OpKind::kReduceNorm
                                                : !IsMine(id.chunk())) {
        return Refuse(plan_, instruction, "is not of a chunk of stage ", plan_.stage());
      }
      const bool to_previous = kind == OpKind::kReceiveActivation || kind == OpKind::kSendGradient;
      if (IsPointToPoint(kind) && (to_previous ? IsFirst(id.chunk()) : IsLast(id.chunk()))) {
        return Refuse(plan_, instruction, "has no chunk at its other end");
      }
      const bool per_microbatch =
          IsPointToPoint(kind) || kind == OpKind::kForward || kind == OpKind::kBackward;
      const bool has_microbatch = id.microbatch() < plan_.num_microbatches;
      if (per_microbatch != has_microbatch) {
        return Refuse(plan_, instruction, "names no micro-batch of ", plan_.num_microbatches);
      }
      const GroupKind expected = IsPointToPoint(kind)          ? GroupKind::kPipeline
                                 : kind == OpKind::kReduceNorm ? GroupKind::kWorld
                                 : IsCollective(kind)          ? GroupKind::kData
                                                               : GroupKind::kNone;
      if (instruction.group != expected) {
        return Refuse(plan_, instruction, "communicates in group \"", Name(instruction.group),
                      "\"; expected \"", Name(expected), "\"");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckPasses() const {
    for (int chunk = plan_.stage(); chunk < plan_.num_chunks; chunk += plan_.mesh.pipeline_size()) {
      const InstructionId load(OpKind::kLoadBatch, chunk);
      for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
        const auto id = [&](OpKind kind) { return InstructionId(kind, chunk, microbatch); };
        const InstructionId forward = id(OpKind::kForward);
        const InstructionId backward = id(OpKind::kBackward);
        RETURN_IF_ERROR(Needs(backward, forward));
        if (IsFirst(chunk) || IsLast(chunk)) RETURN_IF_ERROR(Needs(forward, load));
        if (!IsFirst(chunk)) {
          RETURN_IF_ERROR(Needs(forward, id(OpKind::kReceiveActivation)));
          RETURN_IF_ERROR(Needs(id(OpKind::kSendGradient), backward));
        }
        if (!IsLast(chunk)) {
          RETURN_IF_ERROR(Needs(id(OpKind::kSendActivation), forward));
          RETURN_IF_ERROR(Needs(id(OpKind::kReceiveGradient), forward));
          RETURN_IF_ERROR(Needs(backward, id(OpKind::kReceiveGradient)));
        }
        RETURN_IF_ERROR(Needs(InstructionId(OpKind::kReduceGradients, chunk), backward));
      }
    }
    return absl::OkStatus();
  }

  // Each piece of a chunk's gradients: after every backward of the chunk, before the norm; each
  // step after the norm.
  absl::Status CheckShard() const {
    const InstructionId norm(OpKind::kReduceNorm);
    for (const Instruction& instruction : plan_.instructions) {
      const InstructionId id = instruction.id;
      const auto same = [&](OpKind kind) {
        return InstructionId(kind, id.chunk(), InstructionId::kNoMicrobatch, id.piece());
      };
      if (id.operation() == OpKind::kReduceGradients) {
        RETURN_IF_ERROR(Needs(norm, id));
        RETURN_IF_ERROR(Needs(same(OpKind::kGatherParameters), id));
        for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
          RETURN_IF_ERROR(Needs(id, InstructionId(OpKind::kBackward, id.chunk(), microbatch)));
        }
      } else if (id.operation() == OpKind::kOptimizerStep) {
        RETURN_IF_ERROR(Needs(id, norm));
        RETURN_IF_ERROR(Needs(id, same(OpKind::kReduceGradients)));
      } else if (id.operation() == OpKind::kGatherParameters) {
        RETURN_IF_ERROR(Needs(id, same(OpKind::kOptimizerStep)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckSlots() const {
    // By slot: each micro-batch's instructions there. A slot's users are ordered by their forward
    // passes.
    using Pass = std::pair<int, int>;  // chunk, micro-batch
    std::map<int, std::map<Pass, std::vector<int>>> users;
    std::map<Pass, int> slots;
    for (size_t i = 0; i < plan_.instructions.size(); ++i) {
      const Instruction& instruction = plan_.instructions[i];
      const InstructionId id = instruction.id;
      const int slot = instruction.activation_slot;
      if ((id.microbatch() == InstructionId::kNoMicrobatch) != (slot == kNoSlot)) {
        return Refuse(plan_, instruction, "has activation slot ", slot,
                      "; exactly what belongs to a micro-batch has one");
      }
      if (slot == kNoSlot) continue;
      const Pass pass(id.chunk(), id.microbatch());
      const int first_slot = slots.try_emplace(pass, slot).first->second;
      if (first_slot != slot) {
        return Refuse(plan_, instruction, "uses activation slot ", slot,
                      "; its micro-batch is in slot ", first_slot);
      }
      users[slot][pass].push_back(static_cast<int>(i));
    }
    for (const auto& [slot, passes] : users) RETURN_IF_ERROR(CheckSlot(slot, passes));
    if (static_cast<int>(users.size()) != plan_.num_activation_slots) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", plan_.rank, ": ", users.size(),
                                                     " activation slots are used, ",
                                                     plan_.num_activation_slots, " declared"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSlot(int slot,
                         const std::map<std::pair<int, int>, std::vector<int>>& passes) const {
    std::vector<std::pair<int, const std::vector<int>*>> turns;  // forward pass, instructions
    for (const auto& [pass, instructions] : passes) {
      const InstructionId forward(OpKind::kForward, pass.first, pass.second);
      turns.emplace_back(index_.at(forward.packed()), &instructions);
    }
    std::sort(turns.begin(), turns.end());
    for (size_t i = 1; i < turns.size(); ++i) {
      for (const int earlier : *turns[i - 1].second) {
        for (const int later : *turns[i].second) {
          if (order_.Before(earlier, later)) continue;
          return Refuse(plan_, plan_.instructions[later], "may begin in activation slot ", slot,
                        " before ", plan_.instructions[earlier].id.ToString(), " has ended there");
        }
      }
    }
    return absl::OkStatus();
  }

  const RankPlan& plan_;
  const HappensBefore& order_;
  absl::flat_hash_map<uint64_t, int> index_;
};

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

absl::Status ValidatePlans(absl::Span<const RankPlan> plans) {
  for (size_t i = 0; i < plans.size(); ++i) {
    const RankPlan& plan = plans[i];
    if (plan.rank != static_cast<int>(i) ||
        plan.mesh.world_size() != static_cast<int>(plans.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan ", i, " of ", plans.size(), " is of rank ", plan.rank, " of ",
                       plan.mesh.world_size(), "; expected the plans of all ranks, in order"));
    }
    if (plan.mesh != plans[0].mesh || plan.num_chunks != plans[0].num_chunks ||
        plan.num_microbatches != plans[0].num_microbatches) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", i,
          " has another mesh, or other numbers of chunks or micro-batches, than rank 0"));
    }
    RETURN_IF_ERROR(ValidateRankPlan(plan));
    ASSIGN_OR_RETURN(const HappensBefore order, HappensBefore::Create(plan));
    RETURN_IF_ERROR(RankCheck(plan, order).Check());
  }
  return CheckRendezvous(plans);
}

}  // namespace megascale::plan
