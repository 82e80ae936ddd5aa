// A folder that an export fills. Unless Keep was called, the destructor removes the files that were
// written through this object, and the folder if it is new and then empty. Other files stay.
// Threads: one at a time. Blocking: storage.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/base/fd.h"

namespace megascale::hugging_face {

class UnfinishedFolder {
 public:
  // `path` exists. `is_new`: it was made for this export.
  UnfinishedFolder(std::string path, bool is_new) : path_(std::move(path)), is_new_(is_new) {}
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;
  ~UnfinishedFolder();

  // Makes a file to write. Errors: AlreadyExists - another process has made the file, which stays;
  // those of the file system.
  absl::StatusOr<base::UniqueFd> Create(absl::string_view name);
  // Writes a whole file, as base::WriteFileDurably.
  absl::Status Write(absl::string_view name, absl::string_view text);
  void Keep() { kept_ = true; }

  std::string PathOf(absl::string_view name) const;

 private:
  const std::string path_;
  const bool is_new_;
  std::vector<std::string> names_;  // of the files that were written through it
  bool kept_ = false;
};

}  // namespace megascale::hugging_face
