// The memory for activations of micro-batches in flight: which slot each of them uses, in turns.
#pragma once

#include <queue>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/plan_options.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

// Returns how many slots `chunk` of the model needs on its rank: as many as micro-batches are in
// it at once in `order`, the rank's compute order, and the spare ones of `options`.
int NumActivationSlots(const PlanOptions& options, absl::Span<const ComputeItem> order, int chunk);

struct ActivationSlot {
  int slot = 0;
  // Indices of the instructions that must have ended before the next micro-batch begins here.
  std::vector<int> last_users = {};
};

// The free slots of one chunk. The slot that is free for the longest time is used next.
class ActivationSlots {
 public:
  explicit ActivationSlots(int num_slots = 0);

  // Requires: a slot is free, which NumActivationSlots sees to.
  ActivationSlot Take();
  void Free(ActivationSlot slot);

 private:
  std::queue<ActivationSlot> free_;
};

}  // namespace megascale::plan
