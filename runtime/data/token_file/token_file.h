// Our own token files. All numbers are little endian:
//
//   0   8 bytes  "MSTOKENS"
//   8   u32      version, 1
//   12  u32      bytes of a token, 2 or 4
//   16  u64      number of tokens
//   24  u64      number of documents
//   32  u64      size of the tokenizer's vocabulary; ids are below it
//   40  32 bytes SHA-256 of the tokenizer's file
//   72  32 bytes SHA-256 of the tokens and of the document ends, as they lie in the file
//   104 24 bytes zero
//   128          the tokens; zeros up to a multiple of 8; a u64 for each document: its end
//
// Threads: a writer belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/data/token_file/token_source.h"

namespace megascale::data {

class TokenFileWriter {
 public:
  struct Options {
    std::string path;
    int64_t vocabulary_size = 0;   // up to 65,536 tokens take two bytes, more take four
    std::string tokenizer_sha256;  // 64 hexadecimal digits
  };
  // Writes to PATH.tmp, and renames it to `path` once the file is whole. Errors: those of the file;
  // InvalidArgument - tokenizer_sha256 is no digest.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(Options options);
  ~TokenFileWriter();  // removes what Finish has not completed

  // Appends a document. Requires: ids within the vocabulary.
  absl::Status Append(absl::Span<const int32_t> ids);
  // Completes the file and syncs it. Call it once, last.
  absl::Status Finish();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return static_cast<int64_t>(document_ends_.size()); }

 private:
  TokenFileWriter(Options options, std::string tokenizer_digest, base::UniqueFd fd);
  absl::Status Flush();

  const Options options_;
  const std::string tokenizer_digest_;  // 32 bytes
  const std::string partial_path_;
  const bool two_bytes_;
  base::UniqueFd fd_;
  base::Sha256 content_;
  std::string buffer_;
  std::vector<uint64_t> document_ends_;
  int64_t num_tokens_ = 0;
  bool finished_ = false;
};

struct TokenFile {
  std::unique_ptr<TokenSource> source;
  std::string tokenizer_sha256;
  std::string content_sha256;
};
// Opens a file and checks its header, size and index, but not its content. Cost: memory of 8 bytes
// for each document. Errors, with the path: InvalidArgument - not such a file, or a newer version;
// DataLoss - a size or an index that contradicts the header.
absl::StatusOr<TokenFile> OpenTokenFile(const std::string& path);

// Reads the whole file and compares its content with the digest in it. Errors: DataLoss.
absl::Status VerifyTokenFile(const std::string& path);

}  // namespace megascale::data
