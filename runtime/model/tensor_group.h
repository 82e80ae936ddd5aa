// Tensor parallelism as the model sees it: the ranks of a tensor group hold one chunk together.
// Each has its part of the heads, of the MLP's inner width and of the vocabulary, and of the
// residual stream its own rows: of a micro-batch's N rows, rank i of t has [i N/t, (i+1) N/t).
// Sources: Shoeybi et al., Megatron-LM, 2019; Korthikanti et al., 2022 (the rows: sequence
// parallelism).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

// Which of the ranks that hold a chunk together.
struct TensorPlace {
  int size = 1;
  int index = 0;
};

// What the ranks of a tensor group exchange in a pass. Every rank begins the same exchanges in the
// same order, and they are done in that order: while the caller computes, or, where a group does
// not overlap, before the call that begins one returns. The bits are the same.
//
// An exchange's buffers are its own until it has been waited for, which is before the pass ends.
//
// Errors: no call returns one. After a failure status() says so and exchanges do nothing; what they
// should have filled is then whatever it was. Blocking: Wait, until the peers have begun the same
// exchange. Threads: as Ops.
class TensorGroup {
 public:
  using Exchange = int64_t;  // how many-th of the pass, from 1

  virtual ~TensorGroup() = default;

  virtual TensorPlace place() const = 0;
  // out = rank `from`'s `in`, on every rank; other ranks' `in` is not read.
  // Shapes: in and out [n] of the same dtype, which do not overlap.
  virtual Exchange Broadcast(int from, const tensor::Vector& in, const tensor::Vector& out) = 0;
  // out = the sum of the ranks' `in`, added in rank order, on rank `to`; other ranks' `out` is not
  // written. Shapes: in and out [n] of the same dtype, which do not overlap.
  virtual Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) = 0;
  // Returns once `last` and those before it are done.
  virtual void Wait(Exchange last) = 0;
  // The first failure of those that were waited for, or OK.
  virtual absl::Status status() const = 0;
};

}  // namespace megascale::model
