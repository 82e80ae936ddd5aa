// How tensor ranks gather the rows of a micro-batch and add up partial sums of them: in pieces, a
// piece being one rank's rows, so that exchanges hide behind matrix products.
//
//   gather, product    begins with its own rows, and goes on with each other rank's as they come
//   product, sum       each rank's rows are summed up while the product makes the next one's
//
// Products are cut alike whether the TensorGroup overlaps or not, so their bits are the same.
// Internal to TransformerChunk. Legend of suffixes: transformer_block.h.
// Source: MegaScale, section 3.2 (pipelined all-gather and reduce-scatter with chunks of GEMM).
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "runtime/model/tensor_group.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

using tensor::Matrix;
using tensor::Vector;

// The first `rows` rows, or those from `first` on.
Matrix Rows(const Matrix& matrix, int64_t rows);
Matrix RowsFrom(const Matrix& matrix, int64_t first, int64_t rows);
// The elements of a matrix that has no padding between its rows.
Vector Flat(const Matrix& matrix);

// All ranks' rows, of which some may be on their way.
struct GatheredRows {
  Matrix own_RC;
  Matrix all_NC;
  TensorGroup::Exchange first = 0;  // that brings rank 0's; rank i's comes i later
};

// A sum over ranks that may be on its way.
struct SumOfRows {
  TensorGroup::Exchange last = 0;
};

class TensorRows {
 public:
  // `group` is borrowed; null for one tensor rank, which has all rows, and waits for none.
  explicit TensorRows(TensorGroup* group) : group_(group) {}

  // Of the N tokens of a batch.
  int64_t NumOwn(int64_t tokens) const { return tokens / size(); }
  // Where all ranks' rows lie: `own_RC` itself for one rank, else `all_NC`'s first N.
  Matrix All(const Matrix& own_RC, const Matrix& all_NC) const;

  // Begins to fill All(own_RC, all_NC).
  GatheredRows Gather(const Matrix& own_RC, const Matrix& all_NC);
  // What an earlier Gather has filled.
  GatheredRows Gathered(const Matrix& own_RC, const Matrix& all_NC) const;
  // Calls use(first, piece_RC) for each rank's rows, which begin at `first` among all, as they
  // come: its own, then the others in rank order. Then all are there.
  void ForEach(const GatheredRows& gathered,
               absl::FunctionRef<void(int64_t first, const Matrix& piece_RC)> use);
  // All of them, once they are there.
  Matrix Wait(const GatheredRows& gathered);

  // Begins own_RC = its rows of the sum over ranks of `partial_NC`, which is All(own_RC, …). Before
  // a piece is summed, make(first, rows) fills its rows of partial_NC.
  SumOfRows AddUp(const Matrix& partial_NC, const Matrix& own_RC,
                  absl::FunctionRef<void(int64_t first, int64_t rows)> make);
  void Wait(const SumOfRows& sum);

  // all = the ranks' `mine`, one behind the other.
  void GatherVectors(const Vector& mine, const Vector& all);

 private:
  int size() const { return group_ == nullptr ? 1 : group_->place().size; }
  // Returns rank 0's exchange.
  TensorGroup::Exchange Begin(const Vector& mine, const Vector& all);

  TensorGroup* const group_;
};

}  // namespace megascale::model
