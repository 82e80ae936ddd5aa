// The safetensors container: 8 bytes with the length of a JSON header (little endian), the header,
// then the tensors' bytes one after the other. Source: huggingface/safetensors, format section of
// its README. Files may be damaged, so everything in them is checked before it is used. Threads:
// plain functions.
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
  // Offset from the beginning of the data, which follows the header.
  int64_t begin = 0;
  int64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes
  int64_t data_begin = 0;                 // offset in the file
};

// Returns the bytes of one element. Errors: InvalidArgument - not a type of the format, or one
// whose elements are not whole bytes.
absl::StatusOr<int64_t> DtypeBytes(absl::string_view dtype);

// Returns the beginning of a file, up to its data: the entries as given, padded with spaces so that
// the data begins at a multiple of 64 bytes.
std::string SerializeSafetensorsHeader(const SafetensorsHeader& header);

// Returns the number of bytes before the data of a file, from its first 8 bytes. `file` names it in
// errors. Errors: DataLoss - the file is shorter than its header says, or the header is absurdly
// large.
absl::StatusOr<int64_t> SafetensorsDataBegin(absl::string_view start, int64_t file_bytes,
                                             absl::string_view file);

// Parses the beginning of a file of `file_bytes` bytes; `start` reaches at least to its data. The
// result is consistent: types are known, sizes follow from the shapes, and tensors follow each
// other without gap or overlap up to the end of the file. Errors: DataLoss - names `file` and the
// problem.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view start,
                                                         int64_t file_bytes,
                                                         absl::string_view file);

}  // namespace megascale::checkpoint
