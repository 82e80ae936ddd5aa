// The memory in which passes sum up gradients: decides which buffer each chunk or bucket uses, one
// after another.
#pragma once

#include <queue>

#include "runtime/plan/instruction.h"
#include "runtime/plan/plan_options.h"

namespace megascale::plan {

// Returns how many gradient buffers a rank of `stage` needs: one for each of its chunks. With ZeRO
// stage 2, its buckets use one or two buffers in turn. These are fewer than the buckets (if there
// are several), because as many buffers as buckets would save no memory. So with two buckets, the
// second waits for the reduction of the first.
int NumGradientBuffers(const PlanOptions& options, int stage);

struct GradientBuffer {
  int buffer = kNoBuffer;
  int last_user = -1;  // index of the reduction that ends the previous turn; -1: no turn yet
};

// The free gradient buffers of one rank. The buffer that has been free for the longest time is used
// next.
class GradientBuffers {
 public:
  explicit GradientBuffers(int num_buffers);

  // Requires: a buffer is free. It is, because where buckets share buffers, passes accumulate into
  // one bucket at a time.
  GradientBuffer Take();
  void Free(GradientBuffer buffer) { free_.push(buffer); }

 private:
  std::queue<GradientBuffer> free_;
};

}  // namespace megascale::plan
