#include "runtime/base/fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::base {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RaiseOpenFilesLimit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

absl::Status WriteAll(int fd, absl::string_view data) {
  const size_t all = data.size();
  while (!data.empty()) {
    const ssize_t written = ::write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      return ErrnoStatus(error, absl::StrCat("wrote ", all - data.size(), " of ", all, " bytes"));
    }
    data.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(int fd, size_t size_bytes_max) {
  std::string data;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "read");
    if (count == 0) return data;
    if (data.size() + static_cast<size_t>(count) > size_bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("is larger than the limit of ", size_bytes_max, " bytes"));
    }
    data.append(buffer, static_cast<size_t>(count));
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t size_bytes_max) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.valid()) {
    const int error = errno;
    if (error == ENOENT && ::lstat(path.c_str(), &info) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": is a symbolic link to a file that does not exist"));
    }
    return ErrnoStatus(error, path);
  }
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  absl::StatusOr<std::string> data = ReadAll(fd.get(), size_bytes_max);
  if (!data.ok()) return Annotate(data.status(), path);
  return data;
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view data) {
  const std::string beside = absl::StrCat(path, ".tmp");
  UniqueFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", beside));
  auto remove_beside = absl::MakeCleanup([&beside] { ::unlink(beside.c_str()); });
  RETURN_IF_ERROR(Annotate(WriteAll(fd.get(), data), beside));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync ", beside));
  if (::rename(beside.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename ", beside, " to ", path));
  }
  std::move(remove_beside).Cancel();
  return SyncDirectory(std::filesystem::path(path).parent_path().string());
}

std::string UserStateDirectory() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return absl::StrCat(state, "/megascale");
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? absl::StrCat(home, "/.local/state/megascale") : "";
}

absl::Status MakeDirectories(const std::string& path) {
  std::filesystem::path made;
  for (const auto& part : std::filesystem::path(path)) {
    made /= part;
    if (::mkdir(made.c_str(), 0700) == 0) continue;
    const int error = errno;
    if (error == EEXIST || ::access(made.c_str(), F_OK) == 0) continue;
    const std::string what = absl::StrCat("make directory ", made.string());
    // The parent exists, so NotFound would mislead: the missing thing is not what the caller asked
    // for.
    if (error == ENOENT) return absl::FailedPreconditionError(what + ": none can be made there");
    return ErrnoStatus(error, what);
  }
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": exists and is not a directory"));
  }
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  UniqueFd fd(::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open directory ", path));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync directory ", path));
  return absl::OkStatus();
}

}  // namespace megascale::base
