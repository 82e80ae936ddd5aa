// The tensors of a Hugging Face folder: model.safetensors, or several files with
// model.safetensors.index.json. Folders come from elsewhere, so names, headers, shapes and sizes
// are checked before anything is read. Nothing is kept in memory but the headers. Threads: one
// thread at a time. Blocking: storage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/base/fd.h"

namespace megascale::hugging_face {

inline constexpr absl::string_view kConfigFile = "config.json";
inline constexpr absl::string_view kWeightsFile = "model.safetensors";
inline constexpr absl::string_view kIndexFile = "model.safetensors.index.json";

struct StoredTensor {
  std::string name;
  std::string dtype;  // of safetensors: "F32", "BF16", "F16" …
  std::vector<int64_t> shape;
  size_t file = 0;    // index of its file
  int64_t begin = 0;  // of its first byte in the file
};

// Parses an index: the file of each tensor. Errors: InvalidArgument - not an index; a file's name
// that is no name in this folder.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(absl::string_view json,
                                                              absl::string_view file);

class Folder {
 public:
  // Opens all files and reads their headers. Errors: NotFound - no weights, or a file of the index
  // is missing; InvalidArgument - the index is wrong; DataLoss - a header is wrong, a tensor of the
  // index is in no file.
  static absl::StatusOr<std::unique_ptr<Folder>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // By name.
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // Returns null if there is no such tensor. Also finds a tensor under the other name that some
  // files of the family use.
  const StoredTensor* Find(absl::string_view name) const;

  // Reads out.size() bytes of a tensor from byte `offset` on. Requires: the tensor has them.
  // Errors: DataLoss - the file became shorter; those of the file system.
  absl::Status Read(const StoredTensor& tensor, int64_t offset, absl::Span<char> out) const;

 private:
  struct File {
    std::string path;
    base::UniqueFd fd;
  };
  Folder() = default;
  // Adds the tensors of a file that `wanted` maps to this file; all of its tensors if `wanted` is
  // null.
  absl::Status AddFile(const std::string& name, const std::map<std::string, std::string>* wanted);

  std::string path_;
  std::vector<File> files_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace megascale::hugging_face
