// File descriptors with an owner, and reads and writes that finish or say why not.
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

// Raises the number of files that this process may have open to what it may choose itself (`ulimit
// -Hn`), which processes that it starts inherit. Where that is refused the limit stays as it was,
// and the message of a failure names it.
void RaiseOpenFilesLimit();

// A new descriptor for the same open file.
absl::StatusOr<UniqueFd> Duplicate(int fd);

// Writes all of `data`; retries EINTR and short writes. For blocking descriptors. A failure says
// how much of it was written.
absl::Status WriteAll(int fd, absl::string_view data);

// A whole file as bytes. NotFound, PermissionDenied, or ResourceExhausted beyond `size_bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t size_bytes_max);

// Replaces `path` by `data` so that a crash leaves the old or the new content: written beside,
// synced, renamed, the directory synced. After a failure what was written beside is gone.
absl::Status WriteFileDurably(const std::string& path, absl::string_view data);

// Makes a directory and its parents, mode 0700 for those it makes.
absl::Status MakeDirectories(const std::string& path);

// fsync of a directory, so that names made or renamed in it survive.
absl::Status SyncDirectory(const std::string& path);

}  // namespace megascale::base
