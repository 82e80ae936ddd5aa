#include "runtime/model/tensor_rows.h"

#include "runtime/base/check.h"

namespace megascale::model {
namespace {

Vector Part(const Vector& vector, int index, int64_t size) {
  MEGASCALE_CHECK((index + 1) * size <= vector.size);
  return {vector.as<char>() + index * size * static_cast<int64_t>(SizeOf(vector.dtype)),
          vector.dtype, size};
}

}  // namespace

TensorGroup::Exchange TensorGroup::AllGather(const Vector& in, const Vector& out) {
  Exchange last = 0;
  for (int rank = 0; rank < place().size; ++rank) {
    last = Broadcast(rank, in, Part(out, rank, in.size));
  }
  return last;
}

TensorGroup::Exchange TensorGroup::ReduceScatter(const Vector& in, const Vector& out) {
  Exchange last = 0;
  for (int rank = 0; rank < place().size; ++rank) {
    last = Reduce(rank, Part(in, rank, out.size), out);
  }
  return last;
}

Matrix RowsFrom(const Matrix& matrix, int64_t first, int64_t rows) {
  MEGASCALE_CHECK(first + rows <= matrix.rows);
  Matrix view = matrix;
  view.data = static_cast<char*>(matrix.data) +
              first * matrix.stride * static_cast<int64_t>(SizeOf(matrix.dtype));
  view.rows = rows;
  return view;
}

Matrix Rows(const Matrix& matrix, int64_t rows) { return RowsFrom(matrix, 0, rows); }

Vector Flat(const Matrix& matrix) {
  MEGASCALE_CHECK(matrix.stride == matrix.cols);
  return {matrix.data, matrix.dtype, matrix.rows * matrix.cols};
}

Vector First(const Vector& vector, int64_t count) {
  MEGASCALE_CHECK(count <= vector.size);
  return {vector.data, vector.dtype, count};
}

Matrix TensorRows::All(const Matrix& own_RC, const Matrix& all_NC) const {
  return group_ == nullptr ? own_RC : Rows(all_NC, own_RC.rows * size());
}

TensorGroup::Exchange TensorRows::Begin(const Vector& mine, const Vector& all) {
  if (is_whole()) return group_->AllGather(mine, all);
  return group_->TensorGroup::AllGather(mine, all) - (size() - 1);  // in pieces, in any group
}

TensorGroup::Exchange TensorRows::LastOf(TensorGroup::Exchange first) const {
  return is_whole() ? first : first + size() - 1;
}

GatheredRows TensorRows::Gather(const Matrix& own_RC, const Matrix& all_NC) {
  GatheredRows gathered = Gathered(own_RC, all_NC);
  if (group_ != nullptr) gathered.first = Begin(Flat(own_RC), Flat(gathered.all_NC));
  return gathered;
}

GatheredRows TensorRows::Gathered(const Matrix& own_RC, const Matrix& all_NC) const {
  return {.own_RC = own_RC, .all_NC = All(own_RC, all_NC), .first = -size()};
}

void TensorRows::ForEach(const GatheredRows& gathered,
                         absl::FunctionRef<void(int64_t first, const Matrix& piece_RC)> use) {
  if (is_whole()) return use(0, Wait(gathered));
  const int64_t rows = gathered.own_RC.rows;
  const int own = group_ == nullptr ? 0 : group_->place().index;
  use(own * rows, gathered.own_RC);
  for (int rank = 0; rank < size(); ++rank) {
    if (group_ != nullptr) group_->Wait(gathered.first + rank);
    if (rank != own) use(rank * rows, RowsFrom(gathered.all_NC, rank * rows, rows));
  }
}

Matrix TensorRows::Wait(const GatheredRows& gathered) {
  if (group_ != nullptr) group_->Wait(LastOf(gathered.first));
  return gathered.all_NC;
}

SumOfRows TensorRows::AddUp(const Matrix& partial_NC, const Matrix& own_RC,
                            absl::FunctionRef<void(int64_t first, int64_t rows)> make) {
  MEGASCALE_CHECK(partial_NC.rows == own_RC.rows * size());
  MEGASCALE_CHECK(group_ != nullptr || partial_NC.data == own_RC.data);
  SumOfRows sum;
  if (is_whole()) {
    make(0, partial_NC.rows);
    sum.last = group_->ReduceScatter(Flat(partial_NC), Flat(own_RC));
    return sum;
  }
  for (int rank = 0; rank < size(); ++rank) {
    const int64_t first = rank * own_RC.rows;
    make(first, own_RC.rows);
    if (group_ == nullptr) continue;
    sum.last = group_->Reduce(rank, Flat(RowsFrom(partial_NC, first, own_RC.rows)), Flat(own_RC));
  }
  return sum;
}

void TensorRows::Wait(const SumOfRows& sum) {
  if (group_ != nullptr) group_->Wait(sum.last);
}

void TensorRows::GatherVectors(const Vector& mine, const Vector& all) {
  MEGASCALE_CHECK(group_ != nullptr && all.size == size() * mine.size);
  group_->Wait(LastOf(Begin(mine, all)));
}

}  // namespace megascale::model
