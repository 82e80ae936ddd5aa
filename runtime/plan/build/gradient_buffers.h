// The memory in which passes sum up gradients: which buffer each chunk or bucket uses, in turns.
#pragma once

#include <queue>

#include "runtime/plan/instruction.h"
#include "runtime/plan/plan_options.h"

namespace megascale::plan {

// Returns how many gradient buffers a rank of `stage` needs: one for each of its chunks; with ZeRO
// stage 2 fewer than its buckets, which use them in turn, or it would save no memory. With two
// buckets the second one therefore waits for the reduction of the first.
int NumGradientBuffers(const PlanOptions& options, int stage);

struct GradientBuffer {
  int buffer = kNoBuffer;
  int last_user = -1;  // index of the reduction that ends the previous turn; -1: no turn yet
};

// The free gradient buffers of one rank. The buffer that is free for the longest time is used next.
class GradientBuffers {
 public:
  explicit GradientBuffers(int num_buffers);

  // Requires: a buffer is free. Where buckets share buffers a schedule has one turn at a time.
  GradientBuffer Take();
  void Free(GradientBuffer buffer) { free_.push(buffer); }

 private:
  std::queue<GradientBuffer> free_;
};

}  // namespace megascale::plan
