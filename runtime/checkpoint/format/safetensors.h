// The safetensors container: 8 bytes with the length of a JSON header (little endian), the header,
// then the tensors' bytes one after the other. Source: huggingface/safetensors, format section of
// its README. A file comes from a disk that may have lied: everything in it is checked before it is
// used. Threads: plain functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::checkpoint {

inline constexpr int64_t kHeaderLengthBytes = 8;

struct SafetensorsEntry {
  std::string key;
  std::string dtype;  // "F64", "F32", "BF16", "I32" …
  std::vector<int64_t> shape;
  // Within the data, which begins after the header.
  int64_t begin = 0;
  int64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes
  int64_t data_begin = 0;                 // within the file
};

// Bytes of one element. InvalidArgument: not a type of the format.
absl::StatusOr<int64_t> DtypeBytes(absl::string_view dtype);

// The beginning of a file, up to its data: entries as they stand, padded with spaces so that the
// data begins at a multiple of 64 bytes.
std::string SerializeSafetensorsHeader(const SafetensorsHeader& header);

// Bytes of a file before its data, from its first 8 bytes. `file` names it in errors.
// Errors: DataLoss - shorter than its header says, or an absurd header.
absl::StatusOr<int64_t> SafetensorsDataBegin(absl::string_view start, int64_t file_bytes,
                                             absl::string_view file);

// Parses a file of `file_bytes` bytes from its beginning, which reaches at least to its data. What
// it returns is consistent: types are known, sizes follow from the shapes, tensors follow each
// other without gap or overlap up to the end of the file. Errors: DataLoss - with `file` and what
// is wrong.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view start,
                                                         int64_t file_bytes,
                                                         absl::string_view file);

}  // namespace megascale::checkpoint
