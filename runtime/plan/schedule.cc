#include "runtime/plan/schedule.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

std::vector<ComputeItem> OneForwardOneBackward(const ScheduleOptions& options, int stage) {
  const int num_microbatches = options.num_microbatches;
  const int num_ahead = std::min(num_microbatches, options.num_stages - stage - 1);
  std::vector<ComputeItem> order;
  order.reserve(2 * num_microbatches);
  for (int i = 0; i < num_microbatches + num_ahead; ++i) {
    if (i < num_microbatches) {
      order.push_back({.forward = true, .chunk = stage, .microbatch = i});
    }
    if (i >= num_ahead) {
      order.push_back({.forward = false, .chunk = stage, .microbatch = i - num_ahead});
    }
  }
  return order;
}

}  // namespace

std::vector<ComputeItem> ComputeOrder(const ScheduleOptions& options, int stage) {
  MEGASCALE_CHECK(stage >= 0 && stage < options.num_stages && options.num_microbatches > 0);
  switch (options.schedule) {
    case Schedule::k1F1B:
      return OneForwardOneBackward(options, stage);
  }
  MEGASCALE_CHECK_MSG(false, "unknown schedule");
}

}  // namespace megascale::plan
