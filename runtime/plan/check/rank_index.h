// One rank's list of instructions with lookups by id, for the checks of a rank's step.
#pragma once

#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/plan/check/happens_before.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Returns an InvalidArgument that names the rank and the instruction.
template <typename... Parts>
absl::Status Refuse(const RankPlan& plan, const Instruction& instruction, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", plan.rank, ": ", instruction.id.ToString(), " ", parts...));
}

class RankIndex {
 public:
  // Requires: ids are unique; `order` belongs to `plan`. `plan` and `order` outlive the index.
  RankIndex(const RankPlan& plan, const HappensBefore& order);

  const RankPlan& plan() const { return plan_; }
  const HappensBefore& order() const { return order_; }
  // True if a W completes the weight gradients of each backward.
  bool splits_backward() const { return splits_backward_; }
  bool has_trust_ratios() const { return has_trust_ratios_; }

  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }
  bool IsMine(int chunk) const {
    return chunk < plan_.num_chunks && chunk % plan_.mesh.pipeline_size() == plan_.stage();
  }
  bool HasFirstChunk() const { return plan_.stage() == 0; }
  bool HasLastChunk() const { return IsMine(plan_.num_chunks - 1); }
  // Returns the number of a chunk's buckets, which is the number of its gathers, and at least one.
  int NumBuckets(int chunk) const;
  // The kind of instruction that completes a micro-batch's weight gradients.
  OpKind last_part() const {
    return splits_backward_ ? OpKind::kWeightGradient : OpKind::kBackward;
  }

  // B and W.
  static bool GoesBack(OpKind kind) { return IsPass(kind) && OperationOf(kind).goes_back; }
  // S and R; with sharded gradients each belongs to a micro-batch.
  static bool Reduces(OpKind kind) {
    return kind == OpKind::kSumReplicated || kind == OpKind::kReduceGradients;
  }
  // Whether the instruction accumulates into a gradient buffer. B and W do. So does the last
  // chunk's forward, which also computes the gradients of the head, and A, which adds the gradient
  // of a tied head. If each buffer holds one bucket, the first part of a split backward accumulates
  // into no buffer.
  bool AddsToGradients(InstructionId id) const;
  // Whether the instruction accumulates into a gradient buffer that holds a single bucket.
  bool AddsToOneBucket(InstructionId id) const {
    return plan_.shards_gradients && AddsToGradients(id);
  }

  // Returns the index in the plan; -1: the plan has no such instruction.
  int IndexOf(InstructionId id) const;
  // Returns null if the plan has no such instruction.
  const Instruction* Find(InstructionId id) const;
  // Returns the piece of B or W that goes through the layers of `bucket`. Requires: every bucket
  // has a piece.
  InstructionId PieceOf(OpKind kind, int chunk, int microbatch, int bucket) const;
  // Returns the instruction before this one on the compute stream, or InstructionId().
  InstructionId ComputedBefore(InstructionId id) const;

  // Checks that `consumer` begins after `producer` has ended. Errors: InvalidArgument - it may
  // begin earlier, or one of the two is missing.
  absl::Status Needs(InstructionId consumer, InstructionId producer) const;
  absl::Status Missing(InstructionId id) const;

 private:
  const RankPlan& plan_;
  const HappensBefore& order_;
  absl::flat_hash_map<uint64_t, int> index_;
  absl::flat_hash_map<uint64_t, InstructionId> computed_before_;
  std::map<int, int> num_buckets_;  // by chunk
  bool splits_backward_ = false;
  bool has_trust_ratios_ = false;
};

}  // namespace megascale::plan
