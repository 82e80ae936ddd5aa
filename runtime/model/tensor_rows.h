// Gathers the rows of a micro-batch over tensor ranks, and sums partial results over tensor ranks.
// Each piece has one rank's rows, so that exchanges run while matrix products are computed.
//
//   gather, product    begins with its own rows, continues with the other ranks' as they arrive
//   product, sum       each rank's rows are summed while the product computes the next rank's
//
// Products are cut in the same way whether or not the TensorGroup overlaps, so their bits are the
// same. With TensorPlace::whole_exchanges nothing is cut. The bits may then differ, because a
// communicator may add a whole sum, and a device a whole product, in another order than the pieces.
// Internal to TransformerChunk. Legend of suffixes: transformer_block.h. Source: MegaScale, section
// 3.2 (pipelined all-gather and reduce-scatter with chunks of GEMM).
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "runtime/model/tensor_group.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

using tensor::Matrix;
using tensor::Vector;

// Rows returns the first `rows` rows; RowsFrom returns `rows` rows from `first` on.
Matrix Rows(const Matrix& matrix, int64_t rows);
Matrix RowsFrom(const Matrix& matrix, int64_t first, int64_t rows);
// Returns the elements of a matrix as a vector. Requires: no padding between rows.
Vector Flat(const Matrix& matrix);
// Returns the first `count` elements.
Vector First(const Vector& vector, int64_t count);

// All ranks' rows; some may not have arrived yet.
struct GatheredRows {
  Matrix own_RC;
  Matrix all_NC;
  // the exchange that brings rank 0's rows; rank i's rows come with exchange `first` + i, or with
  // `first`, too, if exchanges are whole
  TensorGroup::Exchange first = 0;
};

// A sum over ranks that may not be complete yet.
struct SumOfRows {
  TensorGroup::Exchange last = 0;
};

class TensorRows {
 public:
  // `group` is borrowed; null: one tensor rank, which has all rows.
  explicit TensorRows(TensorGroup* group) : group_(group) {}

  // Returns how many of `tokens` rows are this rank's own.
  int64_t NumOwn(int64_t tokens) const { return tokens / size(); }
  // Returns the memory of all ranks' rows: `own_RC` itself if there is one rank, otherwise the
  // first N rows of `all_NC`.
  Matrix All(const Matrix& own_RC, const Matrix& all_NC) const;

  // Begins to gather all ranks' rows into All(own_RC, all_NC).
  GatheredRows Gather(const Matrix& own_RC, const Matrix& all_NC);
  // Returns the rows that an earlier Gather has filled.
  GatheredRows Gathered(const Matrix& own_RC, const Matrix& all_NC) const;
  // Calls use(first, piece_RC) for each rank's rows, which begin at row `first`: at first for this
  // rank's own rows, then for the others in rank order as they arrive. If exchanges are whole,
  // calls it once, with all rows. When it returns, all rows have arrived.
  void ForEach(const GatheredRows& gathered,
               absl::FunctionRef<void(int64_t first, const Matrix& piece_RC)> use);
  // Waits for all rows and returns them.
  Matrix Wait(const GatheredRows& gathered);

  // Begins to sum `partial_NC` over the ranks; own_RC receives this rank's rows of the sum. Before
  // it sums a piece, or all rows, it calls make(first, rows), which must fill these rows of
  // partial_NC. Requires: partial_NC is All(own_RC, …).
  SumOfRows AddUp(const Matrix& partial_NC, const Matrix& own_RC,
                  absl::FunctionRef<void(int64_t first, int64_t rows)> make);
  void Wait(const SumOfRows& sum);

  // Sets `all` to the ranks' `mine`, one after the other.
  void GatherVectors(const Vector& mine, const Vector& all);

 private:
  int size() const { return group_ == nullptr ? 1 : group_->place().size; }
  bool is_whole() const { return group_ != nullptr && group_->place().whole_exchanges; }
  // Returns the last exchange of a gather whose first one is given.
  TensorGroup::Exchange LastOf(TensorGroup::Exchange first) const;
  // Returns the exchange of rank 0's part.
  TensorGroup::Exchange Begin(const Vector& mine, const Vector& all);

  TensorGroup* const group_;
};

}  // namespace megascale::model
