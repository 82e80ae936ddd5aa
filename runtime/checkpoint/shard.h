// One rank's part of a checkpoint: a complete safetensors file, in memory (a sealed snapshot) or on
// storage. Persisting is writing it out as it is; restoring from memory and from storage read the
// same bytes. Its metadata says what the tensors are parts of: (attempt, step, next_sample) and a
// ShardFile with the slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/checkpoint.pb.h"

namespace megascale::checkpoint {

// Which moment of the training a shard holds.
struct ShardMoment {
  int64_t attempt = 0;
  int64_t step = 0;         // completed
  int64_t next_sample = 0;  // global index of the first sample not yet trained on

  bool operator==(const ShardMoment&) const = default;
};

// Where everything lies in a rank's shard; the same at every step. Make it once.
class ShardLayout {
 public:
  // Lays the slices out in their order. A slice without box covers its tensor; each element of a
  // tensor belongs to exactly one slice of one rank. Errors: InvalidArgument - a key twice, an
  // unknown type, a box or range outside its tensor.
  static absl::StatusOr<ShardLayout> Create(
      int rank, std::vector<megascale::checkpoint::v1::TensorSlice> slices);

  // Of the whole file: what a snapshot buffer must hold.
  int64_t size_bytes() const { return size_bytes_; }
  const std::vector<megascale::checkpoint::v1::TensorSlice>& slices() const { return slices_; }
  // First byte of a slice within the file; a multiple of its element size. The first slice's is a
  // multiple of 64.
  int64_t data_offset(size_t slice) const { return data_begin_ + offsets_[slice]; }

  // Writes everything before the data. Requires: `payload` has size_bytes() bytes.
  void WriteHeader(const ShardMoment& moment, absl::Span<std::byte> payload) const;

 private:
  ShardLayout() = default;
  std::string Header(const ShardMoment& moment) const;

  int rank_ = 0;
  std::vector<megascale::checkpoint::v1::TensorSlice> slices_;
  std::vector<int64_t> offsets_;  // within the data
  int64_t data_begin_ = 0;
  int64_t size_bytes_ = 0;
};

// A parsed shard.
struct Shard {
  int rank = 0;
  ShardMoment moment;
  std::vector<megascale::checkpoint::v1::TensorSlice> slices;
  std::vector<int64_t> data_offsets;  // of each slice, within the file
};

// Parses a file of `file_bytes` bytes from its beginning, which reaches at least to its data.
// Errors: DataLoss - with `file` and what is wrong.
absl::StatusOr<Shard> ParseShard(absl::string_view start, int64_t file_bytes,
                                 absl::string_view file);

// Elements of a tensor. InvalidArgument: a negative dimension, or more than fit into an int64.
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape);

// OK when type, box and range of the slice make sense.
absl::Status CheckSlice(const megascale::checkpoint::v1::TensorSlice& slice);

// A run of elements that follow each other in the tensor (row-major) and in the slice.
struct SliceRun {
  int64_t tensor_begin = 0;
  int64_t slice_begin = 0;
  int64_t count = 0;
};
// Calls `visit` for every run of the slice, in order, until it fails. Requires: CheckSlice is OK.
absl::Status ForEachRun(const megascale::checkpoint::v1::TensorSlice& slice,
                        absl::FunctionRef<absl::Status(const SliceRun&)> visit);

}  // namespace megascale::checkpoint
