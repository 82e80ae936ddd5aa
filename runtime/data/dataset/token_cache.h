// Token files of texts that were encoded before, in a folder of this machine. They are found by the
// digest of all that decides the tokens: the text, the tokenizer, the options. A text is encoded
// once, by the first process that needs it, piece by piece: if that process is killed, at most one
// piece is lost. Everything in the folder may be deleted while no job runs.
//
//   FOLDER/DIGEST/00000.tokens …   pieces, in order
//   FOLDER/DIGEST/complete         says that these are all
//   FOLDER/DIGEST/lock             held by the process that encodes
//
// Threads: one at a time; several processes may share a folder. Blocking: storage, other processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/dataset/text_chunks.h"
#include "runtime/data/token_file/token_source.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::data {

// Called during long work with what is done ("tokenizing PATH") and how far it has come.
using OnProgress =
    std::function<void(const std::string& what, int64_t done_bytes, int64_t all_bytes)>;

struct EncodeRequest {
  TextChunkOptions text;
  std::string text_sha256;  // of the file
  const tokenizer::Tokenizer* tokenizer = nullptr;
  int32_t end_token = 0;
  int64_t num_rows = INT64_MAX;  // tokens that the model has; text with any other is refused
  int64_t piece_bytes = int64_t{64} << 20;  // of text in a piece
};

struct EncodedText {
  std::string sha256;  // of what decides the tokens
  std::vector<std::unique_ptr<TokenSource>> pieces;
  int64_t num_skipped = 0;  // lines of JSON Lines, or bytes
  // Documents that begin or end with the tokenizer's own tokens, which are not put there again.
  // Counts those that were encoded since a process was killed.
  int64_t num_repeated = 0;
};

class TokenCache {
 public:
  // The folder is made when it is needed. "": `tokens` in the user's state folder.
  explicit TokenCache(std::string folder);

  // Returns the tokens of a text; encodes what is not there yet or is damaged. Errors: those of the
  // text; InvalidArgument - a token that the model does not have; DataLoss - the text changed since
  // it was hashed; those of the folder, with its path.
  absl::StatusOr<EncodedText> Encode(const EncodeRequest& request, const OnProgress& on_progress);

  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
};

// Holds a lock file of a folder, which is made if it is missing. Errors: those of the file system.
class FolderLock {
 public:
  // Waits for other processes and tells `on_wait` about twice a second. The kernel frees the lock
  // of a process that dies.
  static absl::StatusOr<FolderLock> Take(const std::string& folder,
                                         const std::function<void()>& on_wait);

 private:
  explicit FolderLock(base::UniqueFd fd) : fd_(std::move(fd)) {}
  base::UniqueFd fd_;
};

}  // namespace megascale::data
