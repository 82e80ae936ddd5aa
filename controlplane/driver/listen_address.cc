#include "controlplane/driver/listen_address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

absl::Status CheckFolder(const std::string& folder) {
  RETURN_IF_ERROR(base::MakeDirectories(folder));
  struct stat info;
  if (::stat(folder.c_str(), &info) != 0) return base::ErrnoStatus(errno, folder);
  if (info.st_uid == ::geteuid() && (info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder,
                   ": the folder of the driver's socket must belong to you and be closed to "
                   "others (chmod 700 ",
                   folder, "), or give another address with --listen"));
}

bool SomebodyListens(const std::string& path) {
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  MEGASCALE_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  // A full queue (EAGAIN) has a listener too; a dead socket refuses.
  return ::connect(fd.get(), generic, sizeof(address)) == 0 || errno == EAGAIN;
}

}  // namespace

absl::Status PrepareSocket(const std::string& path) {
  RETURN_IF_ERROR(CheckFolder(std::filesystem::path(path).parent_path().string()));
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : base::ErrnoStatus(errno, path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": exists and is not a socket; remove it, or give another address with --listen"));
  }
  if (SomebodyListens(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat("unix:", path,
                     ": another driver listens there; stop it, or give another "
                     "address with --listen"));
  }
  if (::unlink(path.c_str()) != 0) return base::ErrnoStatus(errno, absl::StrCat("remove ", path));
  return absl::OkStatus();
}

}  // namespace megascale::driver
