#include "runtime/base/socket/own_socket.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status.h"

namespace megascale::base {
namespace {

absl::Status Refuse(absl::string_view path, absl::string_view found, absl::string_view advice) {
  return absl::PermissionDeniedError(absl::StrCat(path, ": ", found, "; ", advice));
}

absl::Status Look(const std::string& path, absl::string_view advice, struct stat* info) {
  if (::lstat(path.c_str(), info) == 0) return absl::OkStatus();
  absl::Status status = ErrnoStatus(errno, path);
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(absl::StrCat(status.message(), "; ", advice));
}

std::string ModeText(const struct stat& info) {
  return absl::StrFormat("%04o", info.st_mode & 07777);
}

absl::string_view KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISREG(mode)) return "a regular file";
  return S_ISSOCK(mode) ? "a socket" : "a device or pipe";
}

std::string ThisUser() { return DescribeUser(::geteuid()); }

absl::Status CheckOwner(const std::string& path, const struct stat& info,
                        absl::string_view advice) {
  if (info.st_uid == ::geteuid()) return absl::OkStatus();
  return Refuse(path,
                absl::StrCat("belongs to ", DescribeUser(info.st_uid), ", expected ", ThisUser(),
                             ", this process's user"),
                advice);
}

// Whether `uid` may own a folder above ours. The owner of / is root if this process's user
// namespace maps root; in a container without root, that owner stands for root.
bool MayHold(uid_t uid) {
  struct stat top;
  return uid == ::geteuid() || uid == 0 || (::stat("/", &top) == 0 && uid == top.st_uid);
}

// Checks that no other user can replace entries in the folders above `folder`, an absolute path.
absl::Status CheckAbove(const std::filesystem::path& folder, absl::string_view advice) {
  for (std::filesystem::path above = folder; above.has_relative_path();) {
    above = above.parent_path();
    struct stat info;
    RETURN_IF_ERROR(Look(above.string(), advice, &info));
    const std::string what = absl::StrCat(above.string(), ", a folder above it, ");
    if (!MayHold(info.st_uid)) {
      return Refuse(folder.string(),
                    absl::StrCat(what, "belongs to ", DescribeUser(info.st_uid),
                                 ", who could replace it; expected ", ThisUser(), " or root"),
                    advice);
    }
    if (!S_ISLNK(info.st_mode) && OthersMayWrite(info) && (info.st_mode & S_ISVTX) == 0) {
      return Refuse(folder.string(),
                    absl::StrCat(what, "has mode ", ModeText(info),
                                 ", so other users could replace it; expected that only its owner "
                                 "may write there, or the sticky bit"),
                    advice);
    }
  }
  return absl::OkStatus();
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path of a Unix socket may have ", sizeof(address.sun_path) - 1,
        " bytes, this one has ", path.size(), ": ", path, "; choose a shorter folder"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

absl::Status CheckSocketItself(const std::string& path, absl::string_view advice) {
  struct stat info;
  RETURN_IF_ERROR(Look(path, advice, &info));
  if (!S_ISSOCK(info.st_mode)) {
    return Refuse(path, absl::StrCat("is ", KindOf(info.st_mode), ", expected a socket"), advice);
  }
  RETURN_IF_ERROR(CheckOwner(path, info, advice));
  if ((info.st_mode & 022) == 0) return absl::OkStatus();
  return Refuse(path,
                absl::StrCat("has mode ", ModeText(info),
                             ", expected that only its owner may write to it (0600)"),
                advice);
}

absl::StatusOr<uid_t> PeerOf(int fd, absl::string_view path) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus(errno, absl::StrCat(path, ": credentials of the other end"));
  }
  return peer.uid;
}

}  // namespace

bool OthersMayWrite(const struct stat& info) {
  if ((info.st_mode & 022) == 0) return false;
  if ((info.st_mode & 002) != 0) return true;
  std::vector<char> buffer(1 << 14);
  std::vector<char> group_buffer(1 << 16);
  passwd entry = {};
  passwd* owner = nullptr;
  ::group group_entry = {};
  ::group* group = nullptr;
  ::getpwuid_r(info.st_uid, &entry, buffer.data(), buffer.size(), &owner);
  ::getgrgid_r(info.st_gid, &group_entry, group_buffer.data(), group_buffer.size(), &group);
  if (owner == nullptr || group == nullptr || owner->pw_gid != info.st_gid) return true;
  const std::string name = owner->pw_name;
  if (group->gr_name != name) return true;
  for (char** member = group->gr_mem; *member != nullptr; ++member) {
    if (*member != name) return true;
  }
  return false;
}

std::string DescribeUser(unsigned uid) {
  std::vector<char> buffer(1 << 14);
  passwd entry = {};
  passwd* found = nullptr;
  ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? absl::StrCat("uid ", uid)
                          : absl::StrCat(found->pw_name, " (uid ", uid, ")");
}

namespace {

// Checks a folder of this user's that others cannot write to; `is_closed`: they cannot read it
// either.
absl::Status CheckFolder(const std::string& folder, bool is_closed, absl::string_view advice) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "/a/" is "/a"
  struct stat info;
  RETURN_IF_ERROR(Look(path.string(), advice, &info));
  if (!S_ISDIR(info.st_mode)) {
    return Refuse(path.string(),
                  absl::StrCat("is ", KindOf(info.st_mode), ", expected a directory of ",
                               ThisUser(), " with mode 0700"),
                  advice);
  }
  RETURN_IF_ERROR(CheckOwner(path.string(), info, advice));
  if (is_closed ? (info.st_mode & 077) != 0 : OthersMayWrite(info)) {
    return Refuse(path.string(),
                  absl::StrCat("has mode ", ModeText(info), ", expected 0700, closed to others: ",
                               (info.st_mode & S_ISVTX) != 0 ? "make a folder inside it"
                                                             : "chmod 700 " + path.string()),
                  absl::StrCat("or ", advice));
  }
  RETURN_IF_ERROR(CheckAbove(path, advice));
  // Links among the folders above were checked as links; now check what they lead to.
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return ErrnoStatus(error.value(), path.string());
  return real == path ? absl::OkStatus() : CheckAbove(real, advice);
}

}  // namespace

absl::Status CheckOwnFolder(const std::string& folder, absl::string_view advice) {
  return CheckFolder(folder, /*is_closed=*/true, advice);
}

namespace {

absl::Status CheckNotWritable(const std::string& path, const struct stat& info) {
  if (!OthersMayWrite(info)) return absl::OkStatus();
  return Refuse(
      path,
      absl::StrCat("has mode ", ModeText(info), ", expected that only its owner may write to it"),
      absl::StrCat("look whether another user changed it, then chmod go-w ", path));
}

// Checks what a link of this user's in a trusted folder leads to, such as a larger disk.
absl::Status CheckTarget(const std::string& link) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(link, error);
  if (error) return absl::OkStatus();  // it leads nowhere
  const std::string advice = absl::StrCat("remove the link ", link);
  struct stat info;
  RETURN_IF_ERROR(Look(target.string(), advice, &info));
  RETURN_IF_ERROR(CheckOwner(target.string(), info, advice));
  RETURN_IF_ERROR(CheckNotWritable(target.string(), info));
  return CheckAbove(target, advice);
}

}  // namespace

absl::Status CheckTrustedFolder(const std::string& folder, absl::string_view advice) {
  RETURN_IF_ERROR(CheckFolder(folder, /*is_closed=*/false, advice));
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    struct stat info;
    const absl::Status looked = Look(path, advice, &info);
    if (absl::IsNotFound(looked)) continue;  // deleted meanwhile
    RETURN_IF_ERROR(looked);
    RETURN_IF_ERROR(CheckOwner(path, info, "remove it if you did not put it there"));
    RETURN_IF_ERROR(S_ISLNK(info.st_mode) ? CheckTarget(path) : CheckNotWritable(path, info));
  }
  return error ? ErrnoStatus(error.value(), folder) : absl::OkStatus();
}

absl::Status CheckSecretFile(const std::string& path, absl::string_view advice) {
  struct stat info;
  RETURN_IF_ERROR(Look(path, advice, &info));
  if (!S_ISREG(info.st_mode)) {
    return Refuse(path, absl::StrCat("is ", KindOf(info.st_mode), ", expected a regular file"),
                  advice);
  }
  RETURN_IF_ERROR(CheckOwner(path, info, advice));
  if ((info.st_mode & 077) == 0) return absl::OkStatus();
  return Refuse(
      path, absl::StrCat("has mode ", ModeText(info), ", expected 0600, closed to others"), advice);
}

absl::Status MakeOwnFolder(const std::string& folder, absl::string_view advice) {
  if (const absl::Status made = MakeDirectories(folder); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat(made.message(), "; ", advice));
  }
  return CheckOwnFolder(folder, advice);
}

absl::Status TakeOwnFolder(const std::string& folder, absl::string_view advice) {
  if (const absl::Status made = MakeDirectories(folder); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat(made.message(), "; ", advice));
  }
  // Through the descriptor, so that only the checked folder can be changed.
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info;
  if (fd.valid() && ::fstat(fd.get(), &info) == 0 && info.st_uid == ::geteuid() &&
      (info.st_mode & 07777) != 0700 && ::fchmod(fd.get(), 0700) != 0) {
    return ErrnoStatus(errno, absl::StrCat("chmod 700 ", folder));
  }
  return CheckOwnFolder(folder, advice);
}

absl::Status CheckOwnSocket(const std::string& path, absl::string_view advice) {
  RETURN_IF_ERROR(CheckOwnFolder(FolderOf(path), advice));
  return CheckSocketItself(path, advice);
}

absl::Status CheckOwnPeer(int fd, absl::string_view path, absl::string_view advice) {
  ASSIGN_OR_RETURN(const uid_t peer, PeerOf(fd, path));
  if (peer == ::geteuid()) return absl::OkStatus();
  return Refuse(path,
                absl::StrCat("the process at the other end runs as ", DescribeUser(peer),
                             ", expected ", ThisUser(), ", this process's user"),
                advice);
}

absl::Status CheckServerSocket(const std::string& path, absl::string_view advice) {
  struct stat socket;
  if (::lstat(path.c_str(), &socket) != 0) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(FolderOf(path), error);
  if (error) return ErrnoStatus(error.value(), FolderOf(path));
  struct stat info, above;
  RETURN_IF_ERROR(Look(folder.string(), advice, &info));
  RETURN_IF_ERROR(Look(folder.parent_path().string(), advice, &above));
  RETURN_IF_ERROR(CheckAbove(folder, advice));
  if (!MayHold(info.st_uid) && (info.st_uid != socket.st_uid || (above.st_mode & 022) != 0)) {
    return Refuse(path,
                  absl::StrCat(folder.string(), " belongs to ", DescribeUser(info.st_uid),
                               ", expected ", ThisUser(), ", root, or the socket's owner in a ",
                               "place where only root makes folders"),
                  advice);
  }
  if ((info.st_mode & 022) != 0 && !((info.st_mode & S_ISVTX) != 0 && MayHold(socket.st_uid))) {
    return Refuse(path,
                  absl::StrCat(folder.string(), " has mode ", ModeText(info),
                               ", so that others could have made the socket, which belongs to ",
                               DescribeUser(socket.st_uid)),
                  advice);
  }
  return absl::OkStatus();
}

absl::Status CheckServerPeer(int fd, const std::string& path, absl::string_view advice) {
  struct stat info;
  RETURN_IF_ERROR(Look(path, advice, &info));
  ASSIGN_OR_RETURN(const uid_t peer, PeerOf(fd, path));
  if (MayHold(peer) || peer == info.st_uid) return absl::OkStatus();
  return Refuse(path,
                absl::StrCat("the process at the other end runs as ", DescribeUser(peer),
                             ", expected the socket's owner, ", DescribeUser(info.st_uid)),
                advice);
}

absl::StatusOr<UniqueFd> ListenOwnSocket(const std::string& path, int backlog) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "make a socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind a socket to ", path));
  }
  // Nobody can connect before listen.
  if (::chmod(path.c_str(), 0600) != 0) return ErrnoStatus(errno, absl::StrCat("chmod ", path));
  if (::listen(fd.get(), backlog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen at ", path));
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectOwnSocket(const std::string& path, absl::Duration timeout,
                                          absl::string_view advice) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  absl::Status checked = CheckOwnSocket(path, advice);
  if (absl::IsNotFound(checked)) return absl::UnavailableError(checked.message());
  RETURN_IF_ERROR(checked);
  const bool waits = timeout > absl::ZeroDuration();
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0));
  if (!fd.valid()) return ErrnoStatus(errno, "make a socket");
  if (waits) {
    const timeval limit = absl::ToTimeval(timeout);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // also limits connect
  }
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const std::string what = absl::StrCat("connect to ", path, ": ", std::strerror(errno));
    return errno == EAGAIN ? absl::ResourceExhaustedError(what) : absl::UnavailableError(what);
  }
  RETURN_IF_ERROR(CheckOwnPeer(fd.get(), path, advice));
  const timeval none = {};
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none)) != 0 ||
      ::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("set up the connection to ", path));
  }
  return fd;
}

}  // namespace megascale::base
