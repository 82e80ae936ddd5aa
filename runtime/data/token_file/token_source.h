// A long sequence of token ids that lies in a file, cut into documents. Two kinds of files: our own
// (token_file.h) and Megatron-LM's .bin with .idx (megatron_file.h).
// Threads: immutable; const methods from any thread. Blocking: reads of files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/base/fd.h"

namespace megascale::data {

enum class TokenType { kUint8, kUint16, kInt32 };

// Returns the size of one token in a file.
int64_t BytesOf(TokenType type);

// Where the tokens lie.
struct TokenLayout {
  std::string path;  // of the file with the tokens
  TokenType type = TokenType::kUint16;
  int64_t first_byte = 0;  // of the first token
  int64_t num_tokens = 0;
  int64_t vocabulary_size = INT32_MAX;  // ids are below it
};

class TokenSource {
 public:
  // `document_ends`: for each document the number of tokens up to its end; ascending, the last one
  // is num_tokens. Requires: both hold, and the file has the bytes.
  TokenSource(TokenLayout layout, base::UniqueFd fd, std::vector<int64_t> document_ends);

  int64_t num_tokens() const { return layout_.num_tokens; }
  int64_t num_documents() const { return static_cast<int64_t>(document_ends_.size()); }
  // Tokens from DocumentBegin(i) to DocumentEnd(i) are document i.
  int64_t DocumentBegin(int64_t i) const { return i == 0 ? 0 : document_ends_[i - 1]; }
  int64_t DocumentEnd(int64_t i) const { return document_ends_[i]; }
  const TokenLayout& layout() const { return layout_; }

  // Fills `out` with the tokens from `begin` on. Requires: they exist. Errors: DataLoss - the file
  // became shorter, or has an id that is not in the vocabulary; with the path and the token's
  // place.
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const;

 private:
  absl::Status Convert(const std::vector<char>& bytes, int64_t begin,
                       absl::Span<int32_t> out) const;

  TokenLayout layout_;
  base::UniqueFd fd_;
  std::vector<int64_t> document_ends_;
};

// Fills `out` with the bytes of a file from `offset` on. Errors: DataLoss - it ends before.
absl::Status ReadExactly(int fd, const std::string& path, int64_t offset, absl::Span<char> out);

struct OpenedFile {
  base::UniqueFd fd;
  int64_t size_bytes = 0;
};
// Opens a regular file to read. Errors, with the path: NotFound; PermissionDenied; InvalidArgument.
absl::StatusOr<OpenedFile> OpenRegular(const std::string& path);

}  // namespace megascale::data
