// The weights or gradients of a shard in memory of their own: in an engine they lie in its chunk.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "runtime/device/testing/test_window.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::optim {

// A vector for each range, all zero.
struct ShardMemory {
  ShardMemory(const std::vector<model::FlatRange>& ranges, tensor::DType dtype) {
    size_t bytes = 0;
    for (const model::FlatRange& range : ranges) {
      bytes += tensor::Arena::BytesFor(dtype, range.count);
    }
    arena = *tensor::Arena::Create(bytes);
    for (const model::FlatRange& range : ranges) {
      parts.push_back(arena.Allocate(dtype, range.count));
    }
  }
  tensor::Arena arena;
  std::vector<tensor::Vector> parts;
};

// Initializes an optimizer in this process's memory.
inline void Initialize(ShardedOptimizer& optimizer, const model::InitializeOptions& options) {
  device::TestWindow test;
  EXPECT_TRUE(optimizer.Initialize(options, &test.window).ok());
}

}  // namespace megascale::optim
