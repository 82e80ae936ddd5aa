#include "runtime/plan/check/validate.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/check/happens_before.h"
#include "runtime/plan/check/rendezvous.h"

namespace megascale::plan {
namespace {

template <typename... Parts>
absl::Status Refuse(const RankPlan& plan, const Instruction& instruction, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", plan.rank, ": ", instruction.id.ToString(), " ", parts...));
}

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

// Checks one rank's plan as a training step, apart from its meetings with other ranks.
class RankCheck {
 public:
  RankCheck(const RankPlan& plan, const HappensBefore& order) : plan_(plan), order_(order) {
    InstructionId last_computed;
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      index_.emplace(plan.instructions[i].id.packed(), static_cast<int>(i));
      const InstructionId id = plan.instructions[i].id;
      if (id.operation() == OpKind::kGatherParameters) {
        int& num_buckets = num_buckets_[id.chunk()];
        num_buckets = std::max(num_buckets, id.bucket() + 1);
      }
      if (plan.instructions[i].stream == StreamKind::kCompute) {
        computed_before_[id.packed()] = last_computed;
        last_computed = id;
      }
      splits_backward_ |= plan.instructions[i].kind() == OpKind::kWeightGradient;
      has_trust_ratios_ |= OperationOf(plan.instructions[i].kind()).for_trust_ratios;
    }
  }

  absl::Status Check() const {
    RETURN_IF_ERROR(CheckKinds());
    RETURN_IF_ERROR(CheckPasses());
    RETURN_IF_ERROR(CheckShard());
    RETURN_IF_ERROR(CheckGradientBuffers());
    return CheckSlots();
  }

 private:
  // The kind of instruction that completes a micro-batch's weight gradients.
  OpKind last_part() const {
    return splits_backward_ ? OpKind::kWeightGradient : OpKind::kBackward;
  }
  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }
  // S and R; with sharded gradients each belongs to a micro-batch.
  static bool Reduces(OpKind kind) {
    return kind == OpKind::kSumReplicated || kind == OpKind::kReduceGradients;
  }
  // The last chunk's forward also makes the gradients of the head. With a buffer per bucket, the
  // first part of a split backward accumulates into no buffer.
  bool AddsToGradients(InstructionId id) const {
    if (id.operation() == OpKind::kForward) return IsLast(id.chunk());
    if (plan_.shards_gradients) return id.operation() == last_part();
    return GoesBack(id.operation());
  }
  // Whether the gradient buffer then holds a single bucket.
  bool AddsToOneBucket(InstructionId id) const {
    return plan_.shards_gradients && AddsToGradients(id);
  }
  // B and W.
  static bool GoesBack(OpKind kind) { return IsPass(kind) && OperationOf(kind).goes_back; }
  // Returns the number of buckets of a chunk: as many as are gathered, and at least one.
  int NumBuckets(int chunk) const {
    const auto found = num_buckets_.find(chunk);
    return found == num_buckets_.end() ? 1 : found->second;
  }
  const Instruction* Find(InstructionId id) const {
    const auto found = index_.find(id.packed());
    return found == index_.end() ? nullptr : &plan_.instructions[found->second];
  }
  // Returns the piece of B or W that goes through the layers of `bucket`. Requires: CheckPieces is
  // OK.
  InstructionId PieceOf(OpKind kind, int chunk, int microbatch, int bucket) const {
    int first = bucket;
    while (Find(InstructionId(kind, chunk, microbatch, first)) == nullptr) --first;
    return InstructionId(kind, chunk, microbatch, first);
  }
  bool IsMine(int chunk) const {
    return chunk < plan_.num_chunks && chunk % plan_.mesh.pipeline_size() == plan_.stage();
  }

  absl::Status Missing(InstructionId id) const {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", plan_.rank, ": ", id.ToString(),
                     " is missing: every micro-batch passes every chunk once each way, and every "
                     "chunk's parameters are reduced, stepped and gathered once"));
  }

  // Checks that `consumer` begins after `producer` has ended.
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

  // Checks that operations use chunks of this rank, and communicate in the right group.
  absl::Status CheckKinds() const {
    for (const Instruction& instruction : plan_.instructions) {
      const InstructionId id = instruction.id;
      const OpKind kind = instruction.kind();
      const Operation& operation = OperationOf(kind);
      if (id.chunk() == InstructionId::kNoChunk ? operation.per_chunk : !IsMine(id.chunk())) {
        return Refuse(plan_, instruction, "is not of a chunk of stage ", plan_.stage());
      }
      const bool to_previous = operation.other_chunk < 0;
      if (IsTransfer(kind) && (to_previous ? IsFirst(id.chunk()) : IsLast(id.chunk()))) {
        return Refuse(plan_, instruction, "has no chunk at its other end");
      }
      RETURN_IF_ERROR(CheckBuckets(instruction));
      if (instruction.input_only != (splits_backward_ && kind == OpKind::kBackward)) {
        return Refuse(plan_, instruction, "gives the gradient of ",
                      instruction.input_only ? "its input alone" : "its weights too",
                      "; exactly a B that has its W apart gives that of its input alone");
      }
      if (kind == OpKind::kSumReplicated && plan_.mesh.tensor_size() == 1) {
        return Refuse(plan_, instruction, "sums over one tensor-parallel rank");
      }
      const bool per_microbatch =
          operation.per_microbatch == PerMicrobatch::kAlways ||
          (operation.per_microbatch == PerMicrobatch::kIfGradientsAreSharded &&
           plan_.shards_gradients);
      const bool has_microbatch = id.microbatch() < plan_.num_microbatches;
      if (per_microbatch != has_microbatch) {
        return Refuse(plan_, instruction, "names no micro-batch of ", plan_.num_microbatches);
      }
      const GroupKind expected = MeetingIn(plan_.mesh, kind).group;
      if (instruction.group != expected) {
        return Refuse(plan_, instruction, "communicates in group \"", Name(instruction.group),
                      "\"; expected \"", Name(expected), "\"");
      }
      const bool has_buffer = instruction.gradient_buffer != kNoBuffer;
      if ((AddsToGradients(id) || Reduces(kind)) != has_buffer) {
        return Refuse(plan_, instruction, "has gradient buffer ", instruction.gradient_buffer,
                      "; exactly what adds to gradients or reduces them has one");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckBuckets(const Instruction& instruction) const {
    const InstructionId id = instruction.id;
    const bool of_bucket = OperationOf(instruction.kind()).per_bucket;
    const int last = id.bucket() + std::max(1, instruction.num_buckets) - 1;
    if (id.piece() != 0 || last >= (of_bucket ? NumBuckets(id.chunk()) : 1)) {
      return Refuse(plan_, instruction, "is not of a bucket of its chunk");
    }
    if (GoesBack(instruction.kind()) != (instruction.num_buckets > 0)) {
      return Refuse(plan_, instruction, "goes through ", instruction.num_buckets,
                    " buckets; exactly what goes backward goes through some");
    }
    if (!AddsToOneBucket(id) || instruction.num_buckets <= 1) return absl::OkStatus();
    return Refuse(plan_, instruction, "goes through ", instruction.num_buckets,
                  " buckets; where gradients are sharded, a gradient buffer holds those of one");
  }

  // Checks that the pieces of B or W follow each other and go through each bucket once.
  absl::Status CheckPieces(OpKind kind, int chunk, int microbatch) const {
    InstructionId before;
    int next = 0;
    for (int bucket = 0; bucket < NumBuckets(chunk); ++bucket) {
      const InstructionId id(kind, chunk, microbatch, bucket);
      const Instruction* piece = Find(id);
      if (piece == nullptr && bucket < next) continue;
      if (piece == nullptr) return Missing(id);
      if (bucket < next) {
        return Refuse(plan_, *piece, "goes through layers that ", before.ToString(), " does");
      }
      if (bucket > 0) RETURN_IF_ERROR(Needs(id, before));
      const auto computed_before = computed_before_.find(id.packed());
      if (bucket > 0 && AddsToOneBucket(id) &&
          (computed_before == computed_before_.end() || computed_before->second != before)) {
        return Refuse(plan_, *piece, "does not follow ", before.ToString(),
                      " at once; it takes over what that made of its bucket");
      }
      before = id;
      next = bucket + piece->num_buckets;
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
        RETURN_IF_ERROR(CheckPieces(OpKind::kBackward, chunk, microbatch));
        const InstructionId last =
            PieceOf(OpKind::kBackward, chunk, microbatch, NumBuckets(chunk) - 1);
        RETURN_IF_ERROR(Needs(backward, forward));
        if (IsFirst(chunk) || IsLast(chunk)) RETURN_IF_ERROR(Needs(forward, load));
        if (!IsFirst(chunk)) {
          RETURN_IF_ERROR(Needs(forward, id(OpKind::kReceiveActivation)));
          RETURN_IF_ERROR(Needs(id(OpKind::kSendGradient), last));
        }
        if (!IsLast(chunk)) {
          RETURN_IF_ERROR(Needs(id(OpKind::kSendActivation), forward));
          RETURN_IF_ERROR(Needs(id(OpKind::kReceiveGradient), forward));
          RETURN_IF_ERROR(Needs(backward, id(OpKind::kReceiveGradient)));
        }
        if (!splits_backward_) continue;
        RETURN_IF_ERROR(CheckPieces(OpKind::kWeightGradient, chunk, microbatch));
        RETURN_IF_ERROR(Needs(id(OpKind::kWeightGradient), last));
      }
    }
    return absl::OkStatus();
  }

  // Checks each bucket of a chunk. Its parameters are gathered before any forward. Its gradients
  // are reduced before the norm: after every backward, or with sharded gradients those of a
  // micro-batch after its own backward; tensor-parallel ranks first sum the replicated ones. The
  // chunk is stepped after the norm, and after the exchange of trust sums if there is one.
  absl::Status CheckShard() const {
    const InstructionId norm(OpKind::kReduceNorm);
    for (int chunk = plan_.stage(); chunk < plan_.num_chunks; chunk += plan_.mesh.pipeline_size()) {
      const InstructionId step(OpKind::kOptimizerStep, chunk);
      RETURN_IF_ERROR(Needs(step, norm));
      if (has_trust_ratios_) {
        const InstructionId gather(OpKind::kGatherTrustSums, chunk);
        const InstructionId update(OpKind::kOptimizerUpdate, chunk);
        RETURN_IF_ERROR(Needs(step, gather));
        RETURN_IF_ERROR(Needs(gather, update));
        RETURN_IF_ERROR(Needs(update, norm));
      }
      for (int bucket = 0; bucket < NumBuckets(chunk); ++bucket) {
        const InstructionId gather(OpKind::kGatherParameters, chunk, InstructionId::kNoMicrobatch,
                                   bucket);
        for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
          RETURN_IF_ERROR(Needs(InstructionId(OpKind::kForward, chunk, microbatch), gather));
          const InstructionId added = PieceOf(last_part(), chunk, microbatch, bucket);
          RETURN_IF_ERROR(CheckReduced(added, bucket));
        }
      }
    }
    return absl::OkStatus();
  }

  // Checks that a piece's gradients of a bucket go through S, if tensor-parallel ranks have copies
  // of some, then through R, and only then into the norm.
  absl::Status CheckReduced(InstructionId piece, int bucket) const {
    const int microbatch =
        plan_.shards_gradients ? piece.microbatch() : InstructionId::kNoMicrobatch;
    const InstructionId reduced(OpKind::kReduceGradients, piece.chunk(), microbatch, bucket);
    InstructionId first = reduced;
    if (plan_.mesh.tensor_size() > 1) {
      first = InstructionId(OpKind::kSumReplicated, piece.chunk(), microbatch, bucket);
      RETURN_IF_ERROR(Needs(reduced, first));
    }
    RETURN_IF_ERROR(Needs(first, piece));
    return Needs(InstructionId(OpKind::kReduceNorm), reduced);
  }

  struct BufferUsers {
    std::vector<int> passes;      // accumulate into it
    std::vector<int> reductions;  // S and R
  };

  absl::Status CheckGradientBuffers() const {
    std::vector<BufferUsers> buffers(static_cast<size_t>(plan_.gradient_buffers));
    std::set<std::pair<int, int>> shards;  // (chunk, bucket) that R has written to before
    for (size_t i = 0; i < plan_.instructions.size(); ++i) {
      const Instruction& instruction = plan_.instructions[i];
      if (instruction.gradient_buffer == kNoBuffer) continue;
      const InstructionId id = instruction.id;
      BufferUsers& users = buffers[static_cast<size_t>(instruction.gradient_buffer)];
      (Reduces(id.operation()) ? users.reductions : users.passes).push_back(static_cast<int>(i));
      if (id.operation() != OpKind::kReduceGradients) continue;
      if (shards.emplace(id.chunk(), id.bucket()).second == instruction.begins_sum) continue;
      return Refuse(plan_, instruction,
                    instruction.begins_sum ? "begins the shard's sum a second time"
                                           : "adds to a shard whose sum none has begun");
    }
    for (const BufferUsers& users : buffers) RETURN_IF_ERROR(CheckGradientBuffer(users));
    return absl::OkStatus();
  }

  struct Turn {
    int first = 0;  // passes
    int last = 0;
    std::vector<int> last_of_bucket = {};  // by bucket: last pass that added to it, or -1
    std::vector<bool> is_reduced = {};     // by bucket
  };

  void AddTo(Turn* turn, int pass) const {
    const Instruction& instruction = plan_.instructions[pass];
    const int bucket = instruction.id.bucket();
    const auto num_all = static_cast<size_t>(NumBuckets(instruction.id.chunk()));
    turn->last = pass;
    turn->last_of_bucket.resize(num_all, -1);
    // A buffer for one bucket leaves nothing to reduce for the others.
    turn->is_reduced.resize(num_all, plan_.shards_gradients);
    turn->is_reduced[static_cast<size_t>(bucket)] = false;
    // A forward adds only to the head's gradients; their buckets are not known here.
    const auto begin = turn->last_of_bucket.begin() + bucket;
    const bool of_all = !GoesBack(instruction.kind()) && !plan_.shards_gradients;
    const int num_added = std::max(1, instruction.num_buckets);
    std::fill(begin, of_all ? turn->last_of_bucket.end() : begin + num_added, pass);
  }

  bool AreOfOneTurn(const Instruction& first, const Instruction& pass) const {
    return first.id.chunk() == pass.id.chunk() &&
           (!plan_.shards_gradients || first.id.bucket() == pass.id.bucket());
  }

  absl::Status CheckGradientBuffer(const BufferUsers& users) const {
    const auto at = [this](int index) -> const Instruction& { return plan_.instructions[index]; };
    std::vector<Turn> turns;
    for (const int pass : users.passes) {
      if (at(pass).begins_sum) {
        turns.push_back({.first = pass});
      } else {
        if (turns.empty() || !AreOfOneTurn(at(turns.back().first), at(pass))) {
          return Refuse(plan_, at(pass), "adds to a gradient buffer in which its ",
                        plan_.shards_gradients ? "bucket" : "chunk", " has no turn");
        }
        RETURN_IF_ERROR(NeedsInBuffer(pass, turns.back().last));
      }
      AddTo(&turns.back(), pass);
    }
    for (const int reduction : users.reductions) {
      const auto next = std::partition_point(turns.begin(), turns.end(), [&](const Turn& turn) {
        return order_.Before(turn.first, reduction);
      });
      const auto bucket = static_cast<size_t>(at(reduction).id.bucket());
      if (next == turns.begin() ||
          at(std::prev(next)->first).id.chunk() != at(reduction).id.chunk() ||
          std::prev(next)->last_of_bucket[bucket] < 0) {
        return Refuse(plan_, at(reduction), "finds its chunk's gradients in another buffer");
      }
      // Passes may continue to add to later buckets.
      RETURN_IF_ERROR(NeedsInBuffer(reduction, std::prev(next)->last_of_bucket[bucket]));
      if (next != turns.end()) RETURN_IF_ERROR(NeedsInBuffer(next->first, reduction));
      if (at(reduction).kind() != OpKind::kReduceGradients) continue;
      if (std::prev(next)->is_reduced[bucket]) {
        return Refuse(plan_, at(reduction), "reduces a sum of gradients a second time");
      }
      std::prev(next)->is_reduced[bucket] = true;
    }
    for (const Turn& turn : turns) {
      if (std::find(turn.is_reduced.begin(), turn.is_reduced.end(), false) ==
          turn.is_reduced.end()) {
        continue;
      }
      return Refuse(plan_, at(turn.first), "begins a sum of gradients that none reduces");
    }
    if (!turns.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("rank ", plan_.rank, ": of ",
                                                   plan_.gradient_buffers,
                                                   " declared gradient buffers one is never used"));
  }

  absl::Status NeedsInBuffer(int later, int earlier) const {
    if (order_.Before(earlier, later)) return absl::OkStatus();
    const Instruction& instruction = plan_.instructions[later];
    return Refuse(plan_, instruction, "may begin in gradient buffer ", instruction.gradient_buffer,
                  " before ", plan_.instructions[earlier].id.ToString(), " has ended there");
  }

  absl::Status CheckSlots() const {
    using Pass = std::pair<int, int>;  // chunk, micro-batch
    std::map<SlotOfChunk, SlotUsers> users;
    std::map<Pass, int> slots;
    for (size_t i = 0; i < plan_.instructions.size(); ++i) {
      const Instruction& instruction = plan_.instructions[i];
      const InstructionId id = instruction.id;
      const int slot = instruction.activation_slot;
      const bool is_in_slot =
          OperationOf(instruction.kind()).per_microbatch == PerMicrobatch::kAlways;
      if (is_in_slot != (slot != kNoSlot)) {
        return Refuse(plan_, instruction, "has activation slot ", slot,
                      "; exactly what belongs to a micro-batch's way through a chunk has one");
      }
      if (slot == kNoSlot) continue;
      const Pass pass(id.chunk(), id.microbatch());
      const int first_slot = slots.try_emplace(pass, slot).first->second;
      if (first_slot != slot) {
        return Refuse(plan_, instruction, "uses activation slot ", slot,
                      "; its micro-batch is in slot ", first_slot);
      }
      users[{id.chunk(), slot}][id.microbatch()].push_back(static_cast<int>(i));
    }
    for (const auto& [slot, of_slot] : users) RETURN_IF_ERROR(CheckSlot(slot, of_slot));
    const int declared = std::accumulate(plan_.slots.begin(), plan_.slots.end(), 0);
    if (static_cast<int>(users.size()) != declared) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", plan_.rank, ": ", users.size(),
                                                     " activation slots are used, ", declared,
                                                     " declared"));
    }
    return absl::OkStatus();
  }

  using SlotOfChunk = std::pair<int, int>;            // chunk, slot
  using SlotUsers = std::map<int, std::vector<int>>;  // by micro-batch: its instructions there

  // Checks that users of a slot, ordered by their forward passes, follow each other.
  absl::Status CheckSlot(const SlotOfChunk& slot, const SlotUsers& users) const {
    std::vector<std::pair<int, const std::vector<int>*>> turns;  // forward pass, instructions
    for (const auto& [microbatch, instructions] : users) {
      const InstructionId forward(OpKind::kForward, slot.first, microbatch);
      turns.emplace_back(index_.at(forward.packed()), &instructions);
    }
    std::sort(turns.begin(), turns.end());
    for (size_t i = 1; i < turns.size(); ++i) {
      for (const int earlier : *turns[i - 1].second) {
        for (const int later : *turns[i].second) {
          if (order_.Before(earlier, later)) continue;
          return Refuse(plan_, plan_.instructions[later], "may begin in activation slot ",
                        slot.second, " before ", plan_.instructions[earlier].id.ToString(),
                        " has ended there");
        }
      }
    }
    return absl::OkStatus();
  }

  const RankPlan& plan_;
  const HappensBefore& order_;
  absl::flat_hash_map<uint64_t, int> index_;
  // previous instruction on the compute stream
  absl::flat_hash_map<uint64_t, InstructionId> computed_before_;
  std::map<int, int> num_buckets_;  // by chunk
  bool splits_backward_ = false;
  bool has_trust_ratios_ = false;
};

// Runs all checks that need only this plan, and compares its sizes with those of the first plan.
absl::Status CheckAlone(const RankPlan& plan, const RankPlan& first) {
  if (plan.mesh != first.mesh || plan.num_chunks != first.num_chunks ||
      plan.num_microbatches != first.num_microbatches ||
      plan.shards_gradients != first.shards_gradients) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", plan.rank,
                     " has another mesh, or other numbers of chunks or micro-batches, than rank ",
                     first.rank, ", or one of them shards gradients"));
  }
  RETURN_IF_ERROR(ValidateRankPlan(plan));
  ASSIGN_OR_RETURN(const HappensBefore order, HappensBefore::Create(plan));
  return RankCheck(plan, order).Check();
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

absl::Status ValidatePlans(absl::Span<const RankPlan> plans) {
  for (size_t i = 0; i < plans.size(); ++i) {
    const RankPlan& plan = plans[i];
    if (plan.rank != static_cast<int>(i) ||
        plan.mesh.world_size() != static_cast<int>(plans.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan ", i, " of ", plans.size(), " is of rank ", plan.rank, " of ",
                       plan.mesh.world_size(), "; expected the plans of all ranks, in order"));
    }
    RETURN_IF_ERROR(CheckAlone(plan, plans[0]));
  }
  return CheckRendezvous(plans);
}

absl::Status ValidateRolePlans(absl::Span<const RankPlan> roles) {
  if (roles.empty()) return absl::InvalidArgumentError("no plans; expected one for each stage");
  for (size_t i = 0; i < roles.size(); ++i) {
    const RankPlan& role = roles[i];
    const Mesh& mesh = role.mesh;
    const int stage = static_cast<int>(i);
    if (mesh.pipeline_size() != static_cast<int>(roles.size()) ||
        role.rank != mesh.RankOf({.pipeline = stage})) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan ", i, " of ", roles.size(), " is of rank ", role.rank,
                       " of a mesh of ", mesh.pipeline_size(),
                       " stages; expected the plans of each stage's first rank, in order"));
    }
    RETURN_IF_ERROR(CheckAlone(role, roles[0]));
  }
  RETURN_IF_ERROR(CheckGroups(roles[0].mesh, roles[0].mesh.Groups()));
  return CheckRendezvous(roles);
}

}  // namespace megascale::plan
