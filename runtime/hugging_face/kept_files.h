// The small files of a Hugging Face folder that travel with its weights: the configuration and the
// tokenizer. A checkpoint of imported weights keeps them in a folder of its own. Threads: plain
// functions. Blocking: storage.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::hugging_face {

// Returns the folder in which a checkpoint keeps them.
std::string KeptFolderOf(const std::string& checkpoint);

// A folder that is being filled with files. Unless it is kept, its end removes what was written
// into it, and the folder itself if it was not there before.
class FolderToFill {
 public:
  // Errors: AlreadyExists - the folder is there and is not empty.
  static absl::StatusOr<FolderToFill> Make(const std::string& path);
  FolderToFill(FolderToFill&& other) noexcept;
  FolderToFill& operator=(FolderToFill&&) = delete;
  ~FolderToFill();
  void Keep() { path_.clear(); }

 private:
  FolderToFill(std::string path, bool is_new) : path_(std::move(path)), is_new_(is_new) {}

  std::string path_;  // empty: nothing is removed
  bool is_new_;
};

// Copies those that `from` has into `to`, which is made: the files of tokenizers and
// generation_config.json, not config.json. Errors: those of the file system; a file of more than
// 64 MiB.
absl::Status CopyKeptFiles(const std::string& from, const std::string& to);

}  // namespace megascale::hugging_face
