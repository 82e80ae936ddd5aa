// One rank's part of a checkpoint: a complete safetensors file, in memory (a sealed snapshot) or on
// storage. Persisting writes these bytes unchanged, and restoring reads the same bytes from memory
// or from storage. The file's metadata has (attempt, step, next_sample) and a ShardFile with the
// slices, which describe the parts of tensors that the file holds.
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
#include "runtime/checkpoint/format/box.h"

namespace megascale::checkpoint {

// The moment of the training that a shard holds.
struct ShardMoment {
  int64_t attempt = 0;
  int64_t step = 0;         // completed
  int64_t next_sample = 0;  // global index of the first sample not yet trained on

  bool operator==(const ShardMoment&) const = default;
};

// The positions of everything in a rank's shard; the same at every step. Make it once.
class ShardLayout {
 public:
  // Lays out the slices in their order. A slice without a box covers its tensor. Each element of a
  // tensor belongs to exactly one slice of replica 0 of one rank. A slice without a key gets its
  // tensor's name as key; if another slice has that key, the name, "#" and a number. Errors:
  // InvalidArgument - a repeated key, an unknown type, a box or range outside its tensor.
  static absl::StatusOr<ShardLayout> Create(
      int rank, std::vector<megascale::checkpoint::v1::TensorSlice> slices);

  // Returns the size of the whole file, which a snapshot buffer must hold.
  int64_t size_bytes() const { return size_bytes_; }
  const std::vector<megascale::checkpoint::v1::TensorSlice>& slices() const { return slices_; }
  // Returns the offset of a slice's first byte in the file, a multiple of its element size. The
  // first slice's offset is a multiple of 64.
  int64_t data_offset(size_t slice) const { return data_begin_ + offsets_[slice]; }

  // Returns all bytes before the data: data_offset(0) of them.
  std::string PaddedHeader(const ShardMoment& moment) const;
  // Writes all bytes before the data. Requires: `payload` has size_bytes() bytes.
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
  std::vector<int64_t> data_offsets;  // of each slice, in the file
};

// Parses the beginning of a file of `file_bytes` bytes; `start` reaches at least to its data.
// Errors: DataLoss - names `file` and the problem.
absl::StatusOr<Shard> ParseShard(absl::string_view start, int64_t file_bytes,
                                 absl::string_view file);

// Returns OK if type, box, range and replica of the slice are valid. Errors: InvalidArgument -
// names key and tensor.
absl::Status CheckSlice(const megascale::checkpoint::v1::TensorSlice& slice);

// Returns the box in which the slice's range counts; the whole tensor if the slice has no box.
// Requires: CheckSlice returned OK.
Box BoxOf(const megascale::checkpoint::v1::TensorSlice& slice);

// Returns the slice's elements as boxes, in order: see BoxesOfRange. Requires: CheckSlice returned
// OK.
std::vector<Box> BoxesOf(const megascale::checkpoint::v1::TensorSlice& slice);

}  // namespace megascale::checkpoint
