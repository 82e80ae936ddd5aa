// The memory that one rank's process needs, computed from the specification alone before anything
// starts. The engine uses the same sums when it allocates.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::layout {

// Bytes of one rank by purpose, without memory that it shares with other processes.
struct RankMemory {
  // In the memory of the rank's device. Processors compute in the machine's own memory.

  int64_t weights = 0;  // of its chunks, in the compute type; with a copy of a tied embedding
  // In the accumulation type: buffers for whole chunks, or with ZeRO stage 2 for buckets, shards
  // and early gradients; and the packed copies of tensor ranks. See GradientSizes.
  int64_t gradients = 0;
  // State of its shards: both moments, and master weights unless the weights themselves serve as
  // master weights.
  int64_t optimizer = 0;
  int64_t activations = 0;  // of all micro-batches in flight
  int64_t logits = 0;       // logits and their gradient, of one micro-batch; last chunk only
  int64_t scratch = 0;      // memory that micro-batches use in turn: gradients of activations
  // Memory of kernels: on processors, operands rearranged for matrix products and attention; on
  // GPUs, what cuBLASLt and the kernels use within a call. An upper bound.
  int64_t workspaces = 0;
  // GPUs only: what the CUDA driver keeps for a process and for its CUDA graphs, and what NCCL
  // keeps for its communicators. All are estimates: see cuda_memory.h.
  int64_t context = 0;
  int64_t graphs = 0;
  int64_t device_communicators = 0;

  // In the machine's memory, in the worker process.

  int64_t communicators = 0;  // the rings of streams to peers on other machines
  // The most buffers at any time for copies from and to a device with memory of its own. 0 on
  // processors, which copy nothing.
  int64_t pinned = 0;
  int64_t process = 0;  // the program itself, stacks and libraries' buffers: an upper bound

  int num_slots = 0;  // micro-batches in flight, summed over chunks

  int64_t on_device() const {
    return weights + gradients + optimizer + activations + logits + scratch + workspaces + context +
           graphs + device_communicators;
  }
  int64_t on_host() const { return communicators + pinned + process; }
  int64_t sum() const { return on_device() + on_host(); }

  RankMemory& operator+=(const RankMemory& other);
  bool operator==(const RankMemory&) const = default;
};

// Computes the memory of `rank` on the kind of device that the job asks for. Processors are assumed
// to be like this machine's: their instruction set decides the layouts that kernels need. Leaves
// `communicators` 0, because they depend on where the other ranks are: MemoryOfNode fills them in.
// Errors: InvalidArgument - the specification cannot be run.
absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::layout
