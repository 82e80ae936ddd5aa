#include "runtime/plan/check/rank_index.h"

#include <algorithm>

namespace megascale::plan {

RankIndex::RankIndex(const RankPlan& plan, const HappensBefore& order)
    : plan_(plan), order_(order) {
  InstructionId last_computed;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    index_.emplace(plan.instructions[i].id.packed(), static_cast<int>(i));
    const InstructionId id = plan.instructions[i].id;
    if (id.operation() == OpKind::kGatherParameters ||
        id.operation() == OpKind::kGatherForEvaluation) {
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

int RankIndex::NumBuckets(int chunk) const {
  const auto found = num_buckets_.find(chunk);
  return found == num_buckets_.end() ? 1 : found->second;
}

bool RankIndex::AddsToGradients(InstructionId id) const {
  if (id.operation() == OpKind::kForward) return IsLast(id.chunk());
  if (id.operation() == OpKind::kAddHeadGradient) return true;
  if (plan_.shards_gradients) return id.operation() == last_part();
  return GoesBack(id.operation());
}

int RankIndex::IndexOf(InstructionId id) const {
  const auto found = index_.find(id.packed());
  return found == index_.end() ? -1 : found->second;
}

const Instruction* RankIndex::Find(InstructionId id) const {
  const int index = IndexOf(id);
  return index < 0 ? nullptr : &plan_.instructions[static_cast<size_t>(index)];
}

InstructionId RankIndex::PieceOf(OpKind kind, int chunk, int microbatch, int bucket) const {
  int first = bucket;
  while (Find(InstructionId(kind, chunk, microbatch, first)) == nullptr) --first;
  return InstructionId(kind, chunk, microbatch, first);
}

InstructionId RankIndex::ComputedBefore(InstructionId id) const {
  const auto found = computed_before_.find(id.packed());
  return found == computed_before_.end() ? InstructionId() : found->second;
}

absl::Status RankIndex::Missing(InstructionId id) const {
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", plan_.rank, ": ", id.ToString(),
                   " is missing: every micro-batch passes every chunk once each way, and every "
                   "chunk's parameters are reduced, stepped and gathered once"));
}

absl::Status RankIndex::Needs(InstructionId consumer, InstructionId producer) const {
  const int later = IndexOf(consumer);
  if (later < 0) return Missing(consumer);
  const Instruction& instruction = plan_.instructions[static_cast<size_t>(later)];
  const int earlier = IndexOf(producer);
  if (earlier < 0) {
    return Refuse(plan_, instruction, "needs ", producer.ToString(), ", which is not in the plan");
  }
  if (order_.Before(earlier, later)) return absl::OkStatus();
  return Refuse(plan_, instruction, "uses what ", producer.ToString(),
                " makes, and does not wait for it");
}

}  // namespace megascale::plan
