// The logical tensors of a checkpoint, assembled from the slices of its shards. Threads: plain
// data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace megascale::checkpoint {

// Slice number `slice` of shard number `shard`.
struct TensorPiece {
  size_t shard = 0;
  size_t slice = 0;
  megascale::checkpoint::v1::TensorSlice description;
};

struct LogicalTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t num_elements = 0;
  std::vector<TensorPiece> pieces;  // lower replicas first
};

class TensorIndex {
 public:
  using Slices = google::protobuf::RepeatedPtrField<megascale::checkpoint::v1::TensorSlice>;

  // Builds the index; `shards[i]` has the slices of shard i. Errors: DataLoss - an invalid slice,
  // or slices of one tensor that differ in type or shape.
  static absl::StatusOr<TensorIndex> Create(const std::vector<const Slices*>& shards);

  // Sorted by name.
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }

  // Errors: NotFound - no such tensor.
  absl::StatusOr<const LogicalTensor*> Find(absl::string_view name) const;

  // Returns OK if every element of every tensor is in exactly one slice of replica 0. Errors:
  // DataLoss - names the tensor and the element. Cost: that of FindBadCoverage.
  absl::Status CheckComplete() const;

 private:
  std::vector<LogicalTensor> tensors_;
};

}  // namespace megascale::checkpoint
