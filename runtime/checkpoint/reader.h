// Reads a checkpoint as logical tensors, however it was cut into shards: any layout can load any
// other's. A sealed snapshot in memory is read in the same way, as a partial checkpoint. Every
// shard's SHA-256 is checked once, before its first byte is used; if it differs, every read from
// this shard fails. Threads: one thread at a time. Blocking: storage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/checkpoint.pb.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/format/box.h"
#include "runtime/checkpoint/format/tensor_index.h"

namespace megascale::checkpoint {

class CheckpointReader {
 public:
  // Opens a step directory with a manifest. Tensors' contents are not read yet.
  // Errors: those of ReadManifest; NotFound - a shard is missing; DataLoss - a shard's size
  // differs, or tensors have gaps.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& directory);

  // Opens one rank's snapshot (SnapshotReader::Read), which has only this rank's slices of each
  // tensor. Borrows `payload`. manifest() then has only attempt, step and next_sample. Errors:
  // DataLoss - the snapshot is damaged.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenSnapshot(absl::string_view payload);

  const megascale::checkpoint::v1::Manifest& manifest() const { return manifest_; }
  // Sorted by name.
  const std::vector<LogicalTensor>& tensors() const { return index_.tensors(); }
  // Returns the size of all shards together.
  int64_t size_bytes() const;

  // Overwrites `out` with out.size() elements of tensor `name` from `flat_begin` on (row-major).
  // Converts them from the stored type: exactly, except that F64 is rounded when read as float.
  // Reads each element from the replica with the lowest number that has it. Errors: NotFound - no
  // such tensor, or a snapshot lacks an element; OutOfRange - the range ends beyond the tensor;
  // DataLoss - a shard's checksum differs; the message names the file. After an error `out` is
  // undefined.
  absl::Status ReadSlice(absl::string_view name, int64_t flat_begin, absl::Span<float> out);
  absl::Status ReadSlice(absl::string_view name, int64_t flat_begin, absl::Span<double> out);

  // The same for a box of the tensor: `flat_begin` counts within the box. Errors: also
  // InvalidArgument - the box does not fit the tensor.
  absl::Status ReadBox(absl::string_view name, const Box& box, int64_t flat_begin,
                       absl::Span<float> out);
  absl::Status ReadBox(absl::string_view name, const Box& box, int64_t flat_begin,
                       absl::Span<double> out);

  // Checks the checksum of every shard. Errors: DataLoss - names the first bad file.
  absl::Status Verify();

  // Returns the SHA-256 over the logical tensors sorted by name (name, type, shape, all bytes),
  // then step and next_sample. It does not depend on layout, attempt or files.
  absl::StatusOr<std::string> Digest();

 private:
  struct ShardSource {
    std::string path;
    int64_t size_bytes = 0;
    std::string sha256;
    std::vector<megascale::checkpoint::v1::TensorSlice> slices;
    absl::string_view memory;  // of a snapshot
    base::UniqueFd fd;         // of a verified file
    bool verified = false;
    absl::Status failure;               // of the verification, which is not tried again
    std::vector<int64_t> data_offsets;  // known once verified
  };
  // A flat range of a box of a tensor, and the destination of its elements.
  struct Request;

  CheckpointReader() = default;
  absl::Status VerifyShard(ShardSource& shard);
  absl::Status CompareAndOpenShard(ShardSource& shard);
  absl::Status OpenShard(ShardSource& shard);
  absl::Status ReadBytes(const ShardSource& shard, int64_t offset, absl::Span<char> out) const;
  absl::Status Read(const Request& request);
  // Reads the elements of `missing` that the piece has, and removes them from `missing`.
  absl::Status ReadPiece(const TensorPiece& piece, const Request& request,
                         std::vector<Box>* missing);
  // Reads `part`, which is within the piece and the request.
  absl::Status ReadPart(const TensorPiece& piece, const Request& request, const Box& part);
  absl::StatusOr<const LogicalTensor*> Find(absl::string_view name) const;
  template <typename Number>
  absl::Status ReadNumbers(const LogicalTensor& tensor, const Box& box, int64_t flat_begin,
                           absl::Span<Number> out);

  megascale::checkpoint::v1::Manifest manifest_;
  std::string name_;  // shown in messages
  std::vector<ShardSource> shards_;
  TensorIndex index_;
};

}  // namespace megascale::checkpoint
