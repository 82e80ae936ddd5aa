// Tensor parallelism as the model sees it: the ranks of a tensor group hold one chunk together.
// Each rank has its part of the heads, of the MLP's inner width and of the vocabulary. In the
// residual stream each rank has its own rows: of a micro-batch's N rows, rank i of t has [i N/t,
// (i+1) N/t). Sources: Shoeybi et al., Megatron-LM, 2019; Korthikanti et al., 2022 (own rows:
// sequence parallelism).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

// A rank's place among the ranks that hold a chunk together.
struct TensorPlace {
  int size = 1;
  int index = 0;
  // How the ranks exchange rows. True: each gather or sum is one call, for which the pass waits,
  // and products are not cut. False: each rank's rows are a separate exchange, and products are cut
  // into the same rows.
  bool whole_exchanges = false;
};

// The exchanges of tensor ranks in a pass. Every rank begins the same exchanges in the same order,
// and they are carried out in that order. In a group that overlaps, exchanges run while the caller
// computes; otherwise an exchange is done when the call that begins it returns. The results have
// the same bits.
//
// The group owns an exchange's buffers until the caller has waited for the exchange. The caller
// must do so before the pass ends.
//
// Errors: only status() returns them. After a failure, exchanges do nothing, and their outputs are
// undefined. Blocking: Wait, until the peers have begun the same exchange. Threads: as Ops.
class TensorGroup {
 public:
  using Exchange = int64_t;  // its number in the pass, from 1

  virtual ~TensorGroup() = default;

  virtual TensorPlace place() const = 0;
  // Copies rank `from`'s `in` to `out` on every rank; other ranks' `in` is not read. Shapes: in and
  // out [n] of the same dtype; they must not overlap.
  virtual Exchange Broadcast(int from, const tensor::Vector& in, const tensor::Vector& out) = 0;
  // On rank `to`, sets `out` to the sum of the ranks' `in`, added in the group's order; other
  // ranks' `out` is not written. Shapes: in and out [n] of the same dtype; they must not overlap.
  virtual Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) = 0;
  // Sets `out` to the ranks' `in`, one after the other. Shapes: in [n], out [size n] of the same
  // dtype; they must not overlap. Default: a Broadcast from each rank.
  virtual Exchange AllGather(const tensor::Vector& in, const tensor::Vector& out);
  // Sets `out` to this rank's part of the sum of the ranks' `in`. Shapes: in [size n], out [n] of
  // the same dtype; they must not overlap. Default: a Reduce to each rank.
  virtual Exchange ReduceScatter(const tensor::Vector& in, const tensor::Vector& out);
  // Returns once `last` and all earlier exchanges are done.
  virtual void Wait(Exchange last) = 0;
  // Returns OK, or the first failure among the exchanges that were waited for.
  virtual absl::Status status() const = 0;
};

}  // namespace megascale::model
