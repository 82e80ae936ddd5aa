// The memory for activations of micro-batches in flight: decides which slot each micro-batch uses,
// one after another.
#pragma once

#include <queue>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/plan_options.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

// Returns how many slots `chunk` of the model needs on its rank: the greatest number of
// micro-batches that are in the chunk at once, plus the spare slots of `options`. `order` is the
// rank's compute order.
int NumActivationSlots(const PlanOptions& options, absl::Span<const ComputeItem> order, int chunk);

struct ActivationSlot {
  int slot = 0;
  // Indices of the instructions that must have ended before the next micro-batch uses the slot.
  std::vector<int> last_users = {};
};

// The free slots of one chunk. The slot that has been free for the longest time is used next.
class ActivationSlots {
 public:
  explicit ActivationSlots(int num_slots = 0);

  // Requires: a slot is free, which is so if there are NumActivationSlots slots.
  ActivationSlot Take();
  void Free(ActivationSlot slot);

 private:
  std::queue<ActivationSlot> free_;
};

}  // namespace megascale::plan
