#include "controlplane/driver/storage/job_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

class RealFile : public AppendedFile {
 public:
  RealFile(std::string path, base::UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Append(absl::string_view data) override {
    return base::Annotate(base::WriteAll(fd_.get(), data), path_);
  }

  absl::Status Sync() override {
    if (::fdatasync(fd_.get()) == 0) return absl::OkStatus();
    return base::ErrnoStatus(errno, absl::StrCat("sync ", path_));
  }

  absl::Status CutTo(size_t size_bytes) override {
    if (::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) == 0 && ::fsync(fd_.get()) == 0) {
      return absl::OkStatus();
    }
    return base::ErrnoStatus(errno, absl::StrCat("cut ", path_));
  }

  // A path that cannot be looked up now may well lead to the file. NFS says ESTALE of a file that
  // another machine deleted.
  bool IsAtItsPath() override {
    struct stat open = {};
    struct stat named = {};
    if (::fstat(fd_.get(), &open) != 0) return errno != ESTALE;
    if (::stat(path_.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
    return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
  }

 private:
  const std::string path_;
  base::UniqueFd fd_;
};

class RealFiles : public JobFiles {
 public:
  absl::StatusOr<std::unique_ptr<AppendedFile>> OpenAppended(const std::string& path) override {
    const std::string directory = std::filesystem::path(path).parent_path().string();
    RETURN_IF_ERROR(base::MakeDirectories(directory));
    base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("open ", path));
    RETURN_IF_ERROR(base::SyncDirectory(directory));
    return std::make_unique<RealFile>(path, std::move(fd));
  }

  absl::StatusOr<size_t> Size(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) return static_cast<size_t>(info.st_size);
    return base::ErrnoStatus(errno, path);
  }

  absl::StatusOr<std::string> ReadAt(const std::string& path, size_t offset,
                                     size_t size_bytes) override {
    const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("open ", path));
    std::string data(size_bytes, '\0');
    size_t done = 0;
    while (done < size_bytes) {
      const ssize_t got = ::pread(fd.get(), data.data() + done, size_bytes - done,
                                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return base::ErrnoStatus(errno, absl::StrCat("read ", path));
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    data.resize(done);
    return data;
  }

  absl::Status WriteDurably(const std::string& path, absl::string_view data) override {
    return base::WriteFileDurably(path, data);
  }

  absl::Status WriteSoon(const std::string& path, absl::string_view data) override {
    RETURN_IF_ERROR(base::MakeDirectories(std::filesystem::path(path).parent_path().string()));
    // Without O_TRUNC, which would allocate the file's blocks anew, and which leaves an empty file
    // if the process ends then.
    base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("create ", path));
    RETURN_IF_ERROR(base::Annotate(base::WriteAll(fd.get(), data), path));
    struct stat info;
    const auto size = static_cast<off_t>(data.size());
    const bool is_longer = ::fstat(fd.get(), &info) == 0 && info.st_size > size;
    if (!is_longer || ::ftruncate(fd.get(), size) == 0) return absl::OkStatus();
    return base::ErrnoStatus(errno, absl::StrCat("cut ", path));
  }

  bool Exists(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0;
  }
};

}  // namespace

JobFiles& RealJobFiles() {
  static RealFiles files;
  return files;
}

}  // namespace megascale::driver
