// Puts files at their places in a checkpoint directory, which processes of several machines share.
// Private to this folder.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::checkpoint {

// Renames a file or directory. Errors: of the system, with both names.
absl::Status RenamePath(const std::string& from, const std::string& to);

// Makes a file, durably, unless there is one: then nothing changes, and that is no error. `mine`:
// ends the name of a temporary file that no other caller uses.
// On a file system without hard links, one of two callers at the same moment may replace what the
// other one made.
absl::Status MakeFileOnce(const std::string& directory, absl::string_view name,
                          absl::string_view mine, absl::string_view data);

}  // namespace megascale::checkpoint
