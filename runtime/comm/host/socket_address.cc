#include "runtime/comm/host/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

constexpr int kBacklog = 1024;
constexpr int kUnixBufferBytes = 1 << 20;
constexpr absl::string_view kUnixPrefix = "unix ";
constexpr char kAdvice[] = "all workers of a machine run as one user, with its own run directory";

struct Address {
  sockaddr_storage storage = {};
  socklen_t size_bytes = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

absl::StatusOr<Address> TcpAddress(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", host, "\" port ", port, ": ", ::gai_strerror(error),
                     "; expected the numeric address of an interface"));
  }
  const absl::Cleanup free = [found] { ::freeaddrinfo(found); };
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size_bytes = found->ai_addrlen;
  return address;
}

bool IsWildcard(const Address& address) {
  if (address.family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&v6) != 0;
}

absl::StatusOr<base::UniqueFd> BindAndListen(Address address, const std::string& what) {
  base::UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return base::ErrnoStatus(errno, "make a socket");
  if (::bind(fd.get(), address.get(), address.size_bytes) != 0) {
    return base::ErrnoStatus(errno, absl::StrCat("bind a socket to ", what));
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    return base::ErrnoStatus(errno, absl::StrCat("listen at ", what));
  }
  return fd;
}

// A connection that failed with one of these has met nobody: packets were lost, or a route, a
// firewall or a link took them.
bool IsNoAnswer(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EHOSTDOWN || error == ENETDOWN || error == EACCES || error == EPERM ||
         error == EINVAL;  // of a route named "blackhole"
}

absl::Status ConnectError(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  if (IsNoAnswer(error)) return absl::DeadlineExceededError(message);
  return error == EAGAIN ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  if (parts.size() == 3 && parts[0] == "tcp") return TcpAddress(parts[1], parts[2]);
  return absl::InvalidArgumentError(absl::StrCat("not the address of a rank: \"", text, "\""));
}

}  // namespace

absl::StatusOr<ListeningSocket> ListeningSocket::ListenUnix(const std::string& directory,
                                                            const std::string& name) {
  RETURN_IF_ERROR(base::CheckOwnFolder(directory, kAdvice));
  ListeningSocket listening;
  const std::string path = absl::StrCat(directory, "/", name);
  ::unlink(path.c_str());
  ASSIGN_OR_RETURN(listening.fd_, base::ListenOwnSocket(path, kBacklog));
  listening.path_ = path;
  listening.address_ = absl::StrCat(kUnixPrefix, path);
  return listening;
}

absl::StatusOr<ListeningSocket> ListeningSocket::ListenTcp(const std::string& address) {
  ASSIGN_OR_RETURN(const Address wanted, TcpAddress(address, "0"));
  if (IsWildcard(wanted)) {
    return absl::InvalidArgumentError(
        absl::StrCat(address, " means all interfaces; give the address of the job's one"));
  }
  ListeningSocket listening;
  ASSIGN_OR_RETURN(listening.fd_, BindAndListen(wanted, address));
  Address bound;
  bound.size_bytes = sizeof(bound.storage);
  if (::getsockname(listening.fd(), bound.get(), &bound.size_bytes) != 0) {
    return base::ErrnoStatus(errno, absl::StrCat("find the port at ", address));
  }
  // The port is at the same place for both families.
  const int port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
  listening.address_ = absl::StrCat("tcp ", address, " ", port);
  return listening;
}

ListeningSocket::~ListeningSocket() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

absl::StatusOr<base::UniqueFd> StartConnect(const std::string& text) {
  if (absl::StartsWith(text, kUnixPrefix)) {
    return base::ConnectOwnSocket(text.substr(kUnixPrefix.size()), absl::ZeroDuration(), kAdvice);
  }
  ASSIGN_OR_RETURN(Address address, ParseAddress(text));
  base::UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return base::ErrnoStatus(errno, "make a socket");
  if (::connect(fd.get(), address.get(), address.size_bytes) == 0 || errno == EINPROGRESS)
    return fd;
  if (errno == ENOBUFS || errno == ENOMEM) {
    return base::ErrnoStatus(errno, absl::StrCat("connect to ", text));
  }
  return ConnectError(errno, absl::StrCat("connect to ", text));
}

absl::Status FinishConnect(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  return ConnectError(error, "connect");
}

absl::Status CheckAccepted(int fd, const std::string& address) {
  if (!absl::StartsWith(address, kUnixPrefix)) return absl::OkStatus();
  return base::CheckOwnPeer(fd, address.substr(kUnixPrefix.size()), kAdvice);
}

void PrepareStream(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  if (domain == AF_UNIX) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixBufferBytes, sizeof(kUnixBufferBytes));
  } else {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
}

}  // namespace megascale::comm
