#include "controlplane/agent/service/local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::agent {

absl::StatusOr<std::string> LocalAddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The port does not matter: connecting a datagram socket sends no packet.
  const int resolved = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  if (resolved != 0) {
    return absl::UnavailableError(absl::StrCat("host ", host, ": ", ::gai_strerror(resolved)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const base::UniqueFd socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    const int error = errno;
    return absl::UnavailableError(base::ErrnoStatus(error, "route to " + host).message());
  }
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  char text[NI_MAXHOST];
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return absl::UnavailableError("route to " + host + ": the local address is unknown");
  }
  return std::string(text);
}

}  // namespace megascale::agent
