// Megatron-LM's indexed data sets: PREFIX.bin has the tokens, PREFIX.idx says where sequences and
// documents end. Read, not written. The index, version 1, little endian:
//
//   "MMIDIDX\0\0", u64 version, u8 type (1 uint8, 4 int32, 8 uint16), u64 number of sequences,
//   u64 number of document entries, then an i32 length and an i64 byte position for each sequence,
//   then the document entries: i64, the first sequence of each document and, last, their number.
//
// Threads: plain functions. Blocking: storage.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/data/token_file/token_source.h"

namespace megascale::data {

struct MegatronIndex {
  TokenType type = TokenType::kInt32;
  std::vector<int64_t> document_ends;  // in tokens
};

// Fills `out` with the bytes of a file from `offset` on.
using ReadAt = std::function<absl::Status(int64_t offset, absl::Span<char> out)>;

// Reads an .idx file of `size_bytes`, its tables a block at a time. Errors: those of `read`;
// InvalidArgument - another format, version or type of token, each named; DataLoss - a length or an
// entry that contradicts another one. Cost: memory of 8 bytes for each document.
absl::StatusOr<MegatronIndex> ReadMegatronIndex(int64_t size_bytes, const ReadAt& read);

// Opens PREFIX.bin and PREFIX.idx. `path`: the prefix, or either of the two files. Errors: as
// ReadMegatronIndex, with the path; DataLoss - the .bin is shorter than the index says.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatronFile(const std::string& path);

}  // namespace megascale::data
