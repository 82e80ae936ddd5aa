#include "runtime/plan/build/gradient_buffers.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

// One buffer that is being reduced, and one that passes accumulate into.
constexpr int kSharedBuffersMax = 2;

}  // namespace

int NumGradientBuffers(const PlanOptions& options, int stage) {
  if (options.zero_stage != 2) return options.chunks_per_stage;
  int num_buckets = 0;
  for (int chunk = stage; chunk < options.num_chunks(); chunk += options.mesh.pipeline_size()) {
    num_buckets += options.NumBuckets(chunk);
  }
  return std::clamp(num_buckets - 1, 1, kSharedBuffersMax);
}

GradientBuffers::GradientBuffers(int num_buffers) {
  for (int buffer = 0; buffer < num_buffers; ++buffer) free_.push({.buffer = buffer});
}

GradientBuffer GradientBuffers::Take() {
  MEGASCALE_CHECK(!free_.empty());
  const GradientBuffer buffer = free_.front();
  free_.pop();
  return buffer;
}

}  // namespace megascale::plan
