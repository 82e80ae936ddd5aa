// The bytes of a file from beginning to end, unpacked if it is a gzip or zstd file. Which it is
// follows from its first bytes, not from its name. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::data {

// How much of a source file is read and unpacked at once.
inline constexpr size_t kSourceBlockBytes = 256 << 10;

// True if a file that begins so is packed by gzip or zstd.
bool IsPacked(absl::string_view begin);

class ByteStream {
 public:
  // Reads and unpacks the first kBeginBytes (text_check.h) ahead; an error in them comes with the
  // Read that would return them. Errors, each with the path: NotFound; PermissionDenied;
  // InvalidArgument - not a regular file.
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::string& path);
  virtual ~ByteStream() = default;

  // Fills `out` from its beginning and returns how many bytes; 0: the end. Requires: `out` is not
  // empty. Errors, each with the path: DataLoss - the packed data is damaged or cut;
  // InvalidArgument - a zstd frame wants a larger window than is kept; those of reading.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> out) = 0;

  // Returns the first bytes of the unpacked file: kBeginBytes, or all.
  virtual absl::string_view begin() const = 0;

  // Returns how many bytes of the file were read, and how many it has: for progress.
  virtual int64_t read_bytes() const = 0;
  virtual int64_t file_bytes() const = 0;
};

// Reads over a byte order mark at the begin, and returns its bytes, or 0. Requires: nothing was
// read yet. Errors: as ByteStream::Read.
absl::StatusOr<size_t> SkipByteOrderMark(ByteStream* stream);

}  // namespace megascale::data
