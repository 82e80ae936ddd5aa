// Tensor parallelism as the model sees it: the ranks of a tensor group hold one chunk together.
// Each has its part of the heads, of the MLP's inner width and of the vocabulary, and of the
// residual stream its own rows: of a micro-batch's N rows, rank i of t has [i N/t, (i+1) N/t).
// Sources: Shoeybi et al., Megatron-LM, 2019; Korthikanti et al., 2022 (the rows: sequence
// parallelism).
#pragma once

#include "absl/status/status.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

// Which of the ranks that hold a chunk together.
struct TensorPlace {
  int size = 1;
  int index = 0;
};

// What the ranks of a tensor group do together. Every rank makes the same calls in the same order.
//
// Errors: no call returns one. After a failure status() says so and calls do nothing; what they
// should have filled is then whatever it was.
// Blocking: until the peers have made the same call. Stream: ordered as Ops is. Threads: as Ops.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;

  virtual TensorPlace place() const = 0;
  // out = the ranks' `in`, one behind the other in rank order.
  // Shapes: in [n], out [size * n] of the same dtype, which do not overlap.
  virtual void AllGather(const tensor::Vector& in, const tensor::Vector& out) = 0;
  // out = this rank's of `size` equal parts of the sum of the ranks' `in`, added in rank order.
  // Shapes: in [size * n], out [n] of the same dtype, which do not overlap.
  virtual void ReduceScatter(const tensor::Vector& in, const tensor::Vector& out) = 0;
  // The first failure, or OK.
  virtual absl::Status status() const = 0;
};

}  // namespace megascale::model
