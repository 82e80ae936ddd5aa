// What memory one rank's process needs, computed from the specification alone, before anything
// starts: the same sums that the engine allocates by.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::engine {

// Bytes of the worker process, by what for; memory that it shares with others is not in it.
struct RankMemory {
  int64_t weights = 0;  // in compute, of its chunks
  // In the accumulation type: buffers for whole chunks; or for buckets, with shards, and with what
  // passes make early; and of tensor ranks' copies. See GradientSizes.
  int64_t gradients = 0;
  // Of its shards: both moments, and master weights where those are not the weights themselves.
  int64_t optimizer = 0;
  int64_t activations = 0;  // of all micro-batches in flight
  int64_t logits = 0;       // and their gradient, of one micro-batch; last chunk
  int64_t scratch = 0;      // what else micro-batches use in turn: gradients of activations
  int64_t kernels = 0;      // operands rearranged for matrix products and attention: an upper bound
  int64_t process = 0;      // the program itself, stacks and libraries' buffers: an upper bound

  int num_slots = 0;  // micro-batches in flight, of all chunks

  int64_t sum() const {
    return weights + gradients + optimizer + activations + logits + scratch + kernels + process;
  }
};

// For a machine with this one's instruction set: it decides what kernels rearrange.
// Errors: InvalidArgument - the specification cannot be run.
absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::engine
