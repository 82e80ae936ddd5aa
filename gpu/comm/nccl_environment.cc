#include "gpu/comm/nccl_environment.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>

#include <array>
#include <cerrno>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

std::string TextOf(const sockaddr* address) {
  if (address == nullptr) return "";
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  } else {
    return "";
  }
  ::inet_ntop(address->sa_family, bytes, text.data(), text.size());
  return text.data();
}

absl::StatusOr<std::string> InterfaceOf(const std::string& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return base::ErrnoStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* it = all; it != nullptr; it = it->ifa_next) {
    if (TextOf(it->ifa_addr) == address) return std::string(it->ifa_name);
  }
  // The agent found the address a moment ago: the interface went down since then.
  return base::ErrnoStatus(
      ENETDOWN, absl::StrCat("NCCL: no interface of this machine has the address ", address,
                             " of the job's interface any more"));
}

absl::Status Set(const char* name, const std::string& value) {
  if (::setenv(name, value.c_str(), /*overwrite=*/1) == 0) return absl::OkStatus();
  return base::ErrnoStatus(errno, absl::StrCat("setenv ", name));
}

}  // namespace

absl::Status SetNcclEnvironment(const NcclEnvironment& environment) {
  ::setenv("NCCL_PROFILER_PLUGIN", "STATIC_PLUGIN", /*overwrite=*/0);
  if (environment.ib_timeout.has_value()) {
    RETURN_IF_ERROR(Set("NCCL_IB_TIMEOUT", absl::StrCat(*environment.ib_timeout)));
  }
  if (environment.ib_retry_count.has_value()) {
    RETURN_IF_ERROR(Set("NCCL_IB_RETRY_CNT", absl::StrCat(*environment.ib_retry_count)));
  }
  if (environment.address.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string interface, InterfaceOf(environment.address));
  // "=": this name, and not all names that begin with it.
  return Set("NCCL_SOCKET_IFNAME", absl::StrCat("=", interface));
}

}  // namespace megascale::cuda
