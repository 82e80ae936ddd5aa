// The files that a path stands for: itself or, if it is a folder, all files of text in it and in
// its sub-folders. One rule for everything that reads text: jobs, `evaluate`, `tokenizer train`.
// Threads: pure functions. Blocking: reads folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::data {

struct FileList {
  std::vector<std::string> files;  // of a folder sorted by path
  bool is_folder = false;
  int64_t num_bytes = 0;  // of the files of a folder
  // What a folder has besides.
  int64_t num_hidden = 0;     // files and folders whose name begins with "."
  int64_t num_indexes = 0;    // *.dat, indexes of `fortune`
  int64_t num_empty = 0;      // files without a byte
  int64_t num_irregular = 0;  // FIFOs, sockets, devices
  int64_t num_repeated = 0;   // further names of a file or a folder, such as symbolic links

  // Returns a line about a folder, such as "/data: 3 files, 1,048,576 bytes; left out: 1 hidden";
  // empty for a file.
  std::string Line(absl::string_view path) const;
  // Returns what was left out, such as "2 hidden, 1 empty"; empty: nothing.
  std::string LeftOut() const;
};

// Lists the files of a folder, which has at least one, or names `path` itself, of which it knows
// nothing else. Symbolic links are followed. Errors, each with a path: those of reading a folder;
// NotFound - a symbolic link leads nowhere; InvalidArgument - a folder without files; a symbolic
// link that leads back to a folder that it is in.
absl::StatusOr<FileList> ListFiles(const std::string& path);

}  // namespace megascale::data
