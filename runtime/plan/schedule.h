// Pipeline schedules: in which order a stage computes. The rest of a plan follows from it.
#pragma once

#include <cstdint>
#include <vector>

namespace megascale::plan {

enum class Schedule : uint8_t {
  // One forward, one backward: stage s of p runs p - s - 1 forwards ahead, then alternates, so it
  // keeps at most p - s micro-batches. Bubble: (p - 1) * (forward + backward).
  // Source: PipeDream-Flush, Narayanan et al., 2021.
  k1F1B,
};

struct ScheduleOptions {
  Schedule schedule = Schedule::k1F1B;
  int num_stages = 1;
  int num_microbatches = 1;
};

// One forward or backward of one micro-batch through one chunk.
struct ComputeItem {
  bool forward = true;
  int chunk = 0;
  int microbatch = 0;
};

// What `stage` computes in a step, in order.
// Requires: 0 <= stage < num_stages, num_microbatches > 0.
std::vector<ComputeItem> ComputeOrder(const ScheduleOptions& options, int stage);

}  // namespace megascale::plan
