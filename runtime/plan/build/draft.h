// The plan of a rank while it is built, with helpers for all classes that add to it: options by
// chunk and bucket, the last computation so far. Instructions are added in an order in which they
// could run one by one.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/plan_options.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

class Draft {
 public:
  // Requires: CheckOptions(options, rank) is OK; `options` outlives the draft.
  Draft(const PlanOptions& options, int rank);

  const PlanOptions& options() const { return options_; }
  const RankPlan& plan() const { return plan_; }
  RankPlan& plan() { return plan_; }
  RankPlan Take() && { return std::move(plan_); }

  int stage() const { return stage_; }
  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }
  // Returns the chunks of this rank, in the model's order.
  std::vector<int> Chunks() const;
  // Returns the index of a chunk in Chunks().
  size_t IndexOf(int chunk) const { return static_cast<size_t>(plan_.IndexOfChunk(chunk)); }

  ChunkCost Cost(int chunk) const;
  BucketCost CostOfBucket(int chunk, int bucket) const;
  // The kind of instruction that ends a pass, completes its gradients and frees its memory.
  OpKind LastPart() const {
    return options_.splits_backward() ? OpKind::kWeightGradient : OpKind::kBackward;
  }

  // Adds an instruction and returns its index.
  int Add(Instruction instruction);
  // Returns the index of the last instruction on the compute stream; -1: there is none yet.
  int last_computed() const { return last_computed_; }

  // Returns an instruction with the stream and the owner of its operation.
  static Instruction OfOperation(InstructionId id);
  // Returns a collective in the group and channel of its operation.
  Instruction Collective(InstructionId id, int64_t bytes) const;

  // Makes the next pass wait for an instruction that does not make its input.
  void AwaitBeforeNextPass(int index) { awaited_.push_back(index); }
  std::vector<int> TakeAwaited() { return std::exchange(awaited_, {}); }

 private:
  const PlanOptions& options_;
  RankPlan plan_;
  int stage_ = 0;
  int last_computed_ = -1;
  std::vector<int> awaited_;
};

}  // namespace megascale::plan
