// One rank's part of a checkpoint: a complete safetensors file, in memory (a sealed snapshot) or on
// storage. Persisting is writing it out as it is; restoring from memory and from storage read the
// same bytes. Its metadata says what the tensors are parts of: (attempt, step, next_sample) and a
// ShardFile with the slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/checkpoint.pb.h"
#include "runtime/checkpoint/box.h"

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
  // tensor belongs to exactly one slice of replica 0 of one rank. A slice without key gets one: its
  // tensor's name, or where that is taken (by another box of it) the name, "#" and a number.
  // Errors: InvalidArgument - a key twice, an unknown type, a box or range outside its tensor.
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

// OK when type, box, range and replica of the slice make sense. Errors: InvalidArgument - names key
// and tensor.
absl::Status CheckSlice(const megascale::checkpoint::v1::TensorSlice& slice);

// The box in which the slice's range counts; without one, the whole tensor. Requires: CheckSlice.
Box BoxOf(const megascale::checkpoint::v1::TensorSlice& slice);

// The slice's elements, in their order, as BoxesOfRange. Requires: CheckSlice.
std::vector<Box> BoxesOf(const megascale::checkpoint::v1::TensorSlice& slice);

}  // namespace megascale::checkpoint
