// Initial weights. Each element is a pure function of (seed, tensor name, index in the global
// tensor), so it does not depend on how the model is cut into chunks, shards and tensor ranks'
// parts. The normal distribution uses the C library's log, sqrt, sin and cos, which give the same
// bits for the same library version and instruction set. The numerics fingerprint has these two.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

struct InitializeOptions {
  uint64_t seed = 0;
  int num_threads = 1;  // the values do not depend on it
  // Called by any of the threads after each block of at most a million elements, with the number of
  // its elements, because a rank's share of a large model takes minutes. May be empty.
  std::function<void(int64_t num_elements)> on_progress = {};
};

// Overwrites `master` with the initial values of `layout`'s flat elements [begin, begin +
// master.size). Matrices: normal(0, init_range); those that write to the residual stream (attn.out,
// mlp.down) are scaled by 1/sqrt(2 * num_layers). Norm weights: 1. Biases and padding: 0. Shapes:
// master F32 or F64. F64 gets the values rounded to F32, so that both types start
// equal. Threads: starts `num_threads` threads, and waits for them. Source: GPT-2 (Radford et al.,
// 2019), 2.3.
void InitializeParameters(const ModelConfig& config, const ChunkLayout& layout,
                          const InitializeOptions& options, int64_t begin,
                          const tensor::HostVector& master);

}  // namespace megascale::model
