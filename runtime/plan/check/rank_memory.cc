#include "runtime/plan/check/rank_memory.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace megascale::plan {
namespace {

class MemoryCheck {
 public:
  explicit MemoryCheck(const RankIndex& index) : index_(index), plan_(index.plan()) {}

  absl::Status Check() const {
    if (!plan_.evaluates) RETURN_IF_ERROR(CheckGradientBuffers());
    return CheckSlots();
  }

 private:
  struct BufferUsers {
    std::vector<int> passes;      // and A: accumulate into it
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
      (RankIndex::Reduces(id.operation()) ? users.reductions : users.passes)
          .push_back(static_cast<int>(i));
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
    const auto num_all = static_cast<size_t>(index_.NumBuckets(instruction.id.chunk()));
    turn->last = pass;
    turn->last_of_bucket.resize(num_all, -1);
    // A buffer for one bucket leaves nothing to reduce for the others.
    turn->is_reduced.resize(num_all, plan_.shards_gradients);
    turn->is_reduced[static_cast<size_t>(bucket)] = false;
    // A forward adds only to the head's gradients; their buckets are not known here.
    const auto begin = turn->last_of_bucket.begin() + bucket;
    const bool of_all = instruction.kind() == OpKind::kForward && !plan_.shards_gradients;
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
        return index_.order().Before(turn.first, reduction);
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
    if (index_.order().Before(earlier, later)) return absl::OkStatus();
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
      const InstructionId forward(plan_.evaluates ? OpKind::kEvaluate : OpKind::kForward,
                                  slot.first, microbatch);
      turns.emplace_back(index_.IndexOf(forward), &instructions);
    }
    std::sort(turns.begin(), turns.end());
    for (size_t i = 1; i < turns.size(); ++i) {
      for (const int earlier : *turns[i - 1].second) {
        for (const int later : *turns[i].second) {
          if (index_.order().Before(earlier, later)) continue;
          return Refuse(plan_, plan_.instructions[later], "may begin in activation slot ",
                        slot.second, " before ", plan_.instructions[earlier].id.ToString(),
                        " has ended there");
        }
      }
    }
    return absl::OkStatus();
  }

  const RankIndex& index_;
  const RankPlan& plan_;
};

}  // namespace

absl::Status CheckRankMemory(const RankIndex& index) { return MemoryCheck(index).Check(); }

}  // namespace megascale::plan
