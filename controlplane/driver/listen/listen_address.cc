#include "controlplane/driver/listen/listen_address.h"

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
#include "runtime/base/socket/listen_tcp.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

absl::Status MakeFolder(const std::string& folder) {
  absl::Status made = base::MakeOwnFolder(folder, "give another address with --listen");
  return absl::IsPermissionDenied(made) ? absl::FailedPreconditionError(made.message()) : made;
}

bool SomebodyListens(const std::string& path) {
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  MEGASCALE_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  // EAGAIN: the queue is full, so there is a listener. A dead socket refuses.
  return ::connect(fd.get(), generic, sizeof(address)) == 0 || errno == EAGAIN;
}

}  // namespace

absl::Status PrepareSocket(const std::string& path) {
  RETURN_IF_ERROR(MakeFolder(std::filesystem::path(path).parent_path().string()));
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

absl::Status CheckTcpAddress(const client::Address& address) {
  const auto socket = base::ListenTcp(address.host, address.port, /*backlog=*/1);
  if (socket.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(address.text, ": cannot listen there: ", socket.status().message(),
                   "; give another address with --listen"));
}

}  // namespace megascale::driver
