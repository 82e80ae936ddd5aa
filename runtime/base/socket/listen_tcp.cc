#include "runtime/base/socket/listen_tcp.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::base {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* found) const { ::freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::FailedPreconditionError(::gai_strerror(error));
  return Addresses(found);
}

// `is_alone`: an IPv6 socket also takes IPv4 connections if the system says so.
absl::StatusOr<UniqueFd> ListenAt(const addrinfo& address, int backlog, bool is_alone) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const bool is_made = fd.valid() &&
                       ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                       (is_alone || address.ai_family != AF_INET6 ||
                        ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes)) == 0);
  if (!is_made || ::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    return absl::FailedPreconditionError(std::strerror(errno));
  }
  return fd;
}

void SetPort(int port, addrinfo* address) {
  const in_port_t network = htons(static_cast<uint16_t>(port));
  if (address->ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address->ai_addr)->sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_port = network;
  }
}

}  // namespace

absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port, int backlog) {
  ASSIGN_OR_RETURN(const Addresses found, Resolve(host, port));
  return ListenAt(*found, backlog, /*is_alone=*/true);
}

absl::StatusOr<std::vector<UniqueFd>> ListenTcpEverywhere(const std::string& host, int port,
                                                          int backlog) {
  std::vector<UniqueFd> sockets;
  absl::Status failed;
  const bool is_local = host == "localhost";
  for (const std::string& name :
       is_local ? std::vector<std::string>{"127.0.0.1", "::1"} : std::vector<std::string>{host}) {
    ASSIGN_OR_RETURN(const Addresses found, Resolve(name, port));
    const bool is_alone = !is_local && found->ai_next == nullptr;
    for (addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
      if (!sockets.empty()) SetPort(PortOf(sockets.front().get()), address);
      absl::StatusOr<UniqueFd> socket = ListenAt(*address, backlog, is_alone);
      if (socket.ok()) {
        sockets.push_back(*std::move(socket));
      } else {
        failed.Update(socket.status());
      }
    }
  }
  if (sockets.empty()) return failed;
  return sockets;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace megascale::base
