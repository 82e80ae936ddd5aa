#include "runtime/plan/build/activation_slots.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

// Returns how many micro-batches are in `chunk` at once. `last`: the kind of instruction that ends
// a pass.
int NumLive(absl::Span<const ComputeItem> order, int chunk, OpKind last) {
  int live = 0;
  int high_water = 0;
  for (const ComputeItem& item : order) {
    if (item.chunk != chunk) continue;
    live += item.kind == OpKind::kForward ? 1 : item.kind == last ? -1 : 0;
    high_water = std::max(high_water, live);
  }
  return high_water;
}

}  // namespace

int NumActivationSlots(const PlanOptions& options, absl::Span<const ComputeItem> order, int chunk) {
  const OpKind last = options.splits_backward() ? OpKind::kWeightGradient : OpKind::kBackward;
  // The first chunk receives no activations, so its slots are free when its passes come to them.
  const int num_spare = chunk == 0 ? 0 : options.spare_slots;
  return std::min(NumLive(order, chunk, last) + num_spare, options.num_microbatches);
}

ActivationSlots::ActivationSlots(int num_slots) {
  for (int slot = 0; slot < num_slots; ++slot) free_.push({.slot = slot});
}

ActivationSlot ActivationSlots::Take() {
  MEGASCALE_CHECK(!free_.empty());
  ActivationSlot slot = std::move(free_.front());
  free_.pop();
  return slot;
}

void ActivationSlots::Free(ActivationSlot slot) { free_.push(std::move(slot)); }

}  // namespace megascale::plan
