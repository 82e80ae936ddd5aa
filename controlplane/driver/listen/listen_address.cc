#include "controlplane/driver/listen/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
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
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(address.text, ": cannot listen there: ", why,
                                                      "; give another address with --listen"));
  };
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return refuse(::gai_strerror(error));
  const auto release = absl::MakeCleanup([found] { ::freeaddrinfo(found); });
  const base::UniqueFd fd(
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // As gRPC does, to take a port whose last connections are still closing for free.
  const int yes = 1;
  if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), 1) != 0) {
    return refuse(std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace megascale::driver
