// The memory that one rank's process needs, computed from the specification alone before anything
// starts. The engine allocates by the same sums.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::layout {

// Bytes of the worker process by purpose, without memory that it shares with other processes.
struct RankMemory {
  int64_t weights = 0;  // of its chunks, in the compute type
  // In the accumulation type: buffers for whole chunks, or with ZeRO stage 2 for buckets, shards
  // and early gradients; and the packed copies of tensor ranks. See GradientSizes.
  int64_t gradients = 0;
  // State of its shards: both moments, and master weights unless the weights serve as these.
  int64_t optimizer = 0;
  int64_t activations = 0;  // of all micro-batches in flight
  int64_t logits = 0;       // logits and their gradient, of one micro-batch; last chunk only
  int64_t scratch = 0;      // other memory that micro-batches use in turn: gradients of activations
  int64_t kernels = 0;      // operands rearranged for matrix products and attention: an upper bound
  int64_t process = 0;      // the program itself, stacks and libraries' buffers: an upper bound

  int num_slots = 0;  // micro-batches in flight, summed over chunks

  int64_t sum() const {
    return weights + gradients + optimizer + activations + logits + scratch + kernels + process;
  }
};

// Computes the memory of `rank` on a machine with this machine's instruction set, which decides the
// layouts that kernels need. Errors: InvalidArgument - the specification cannot be run.
absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::layout
