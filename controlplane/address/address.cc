#include "controlplane/address/address.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"

namespace megascale::client {
namespace {

constexpr char kExpected[] = "expected unix:/absolute/path or host:port";

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address '", text, "' ", why));
}

absl::StatusOr<Address> ParseUnix(absl::string_view text, absl::string_view path) {
  while (absl::StartsWith(path, "//")) path.remove_prefix(1);
  if (!absl::StartsWith(path, "/") || path.size() < 2) {
    return Refuse(text, absl::StrCat("has no absolute path; ", kExpected));
  }
  constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kPathMax) {
    return Refuse(
        text, absl::StrCat("has a path of ", path.size(), " bytes; a socket's path has at most ",
                           kPathMax, ", choose a shorter directory"));
  }
  Address address;
  address.unix_path = std::string(path);
  address.text = absl::StrCat("unix:", path);
  return address;
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

}  // namespace

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  if (text.empty()) return Refuse(text, absl::StrCat("is empty; ", kExpected));
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) return ParseUnix(text, rest);
  if (absl::StartsWith(text, "/")) return ParseUnix(text, text);
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos)
    return Refuse(text, absl::StrCat("has no port; ", kExpected));
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty() || absl::StrContains(host, "/") || absl::StrContains(host, "[")) {
    return Refuse(text, absl::StrCat("has no host; ", kExpected));
  }
  if (!bracketed && absl::StrContains(host, ":")) {
    return Refuse(text, "has several colons; write an IPv6 address as [::1]:port");
  }
  Address address;
  address.host = std::string(host);
  if (!absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 ||
      address.port > 65535) {
    return Refuse(text,
                  absl::StrCat("has the port '", text.substr(colon + 1), "'; expected 0 to 65535"));
  }
  address.text = bracketed ? absl::StrCat("[", host, "]:", address.port)
                           : absl::StrCat(host, ":", address.port);
  address.loopback = IsLoopback(host);
  return address;
}

absl::StatusOr<Address> ChooseAddress(absl::string_view given) {
  if (!given.empty()) return ParseAddress(given);
  const char* environment = std::getenv("MEGASCALE_ADDRESS");
  if (environment == nullptr || *environment == '\0') return ParseAddress(DefaultAddress());
  absl::StatusOr<Address> address = ParseAddress(environment);
  if (!address.ok()) return base::Annotate(address.status(), "MEGASCALE_ADDRESS");
  return address;
}

std::string DefaultAddress() {
  const char* runtime_directory = std::getenv("XDG_RUNTIME_DIR");
  struct stat info;
  if (runtime_directory != nullptr && *runtime_directory == '/' &&
      stat(runtime_directory, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid()) {
    return absl::StrCat("unix:", runtime_directory, "/megascale/driver.sock");
  }
  return absl::StrCat("unix:/tmp/megascale-", geteuid(), "/driver.sock");
}

}  // namespace megascale::client
