// File descriptors with an owner, and reads and writes that either finish or return an error.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// Owns a file descriptor and closes it. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// Raises this process's soft limit on open files to its hard limit (`ulimit -Hn`); child processes
// inherit it. If that is refused the limit stays, and errors of later opens name it.
void RaiseOpenFilesLimit();

// Writes all of `data`; retries EINTR and short writes. For blocking descriptors. An error says how
// many bytes were written.
absl::Status WriteAll(int fd, absl::string_view data);

// Returns all that can be read from a blocking descriptor. Errors: ResourceExhausted - it is more
// than `size_bytes_max`.
absl::StatusOr<std::string> ReadAll(int fd, size_t size_bytes_max);

// Returns the content of a file. Errors: NotFound; PermissionDenied; ResourceExhausted - it is
// larger than `size_bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t size_bytes_max);

// Replaces the content of `path`, so that a crash leaves the old or the new content: writes a
// temporary file, syncs and renames it, and syncs the directory. After an error the temporary file
// is removed.
absl::Status WriteFileDurably(const std::string& path, absl::string_view data);

// Makes a directory and its missing parents, each with mode 0700.
absl::Status MakeDirectories(const std::string& path);

// Returns the folder in which the user's programs keep state over restarts:
// $XDG_STATE_HOME/megascale or ~/.local/state/megascale; "" if the environment has neither. The
// folder need not exist.
std::string UserStateDirectory();

// Syncs a directory, so that names made or renamed in it survive a crash.
absl::Status SyncDirectory(const std::string& path);

}  // namespace megascale::base
