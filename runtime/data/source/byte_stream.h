// The bytes of a file from beginning to end, unpacked if it is a gzip or zstd file. Which it is
// follows from its first bytes, not from its name. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megascale::data {

// How much of a source file is read and unpacked at once.
inline constexpr size_t kSourceBlockBytes = 256 << 10;

class ByteStream {
 public:
  // Errors, each with the path: NotFound; PermissionDenied; InvalidArgument - not a regular file.
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::string& path);
  virtual ~ByteStream() = default;

  // Fills `out` from its beginning and returns how many bytes; 0: the end. Requires: `out` is not
  // empty. Errors: DataLoss - the packed data is damaged or cut, with the path; those of reading.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> out) = 0;

  // Returns how many bytes of the file were read, and how many it has: for progress.
  virtual int64_t read_bytes() const = 0;
  virtual int64_t file_bytes() const = 0;
};

}  // namespace megascale::data
