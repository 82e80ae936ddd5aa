#include "runtime/comm/store/redis/address.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

constexpr absl::string_view kForms =
    "redis://[USER@]HOST[:PORT][/DATABASE], the same with rediss:// for TLS, or unix:/PATH";
constexpr size_t kTextBytesMax = 512;
constexpr size_t kPathBytesMax = 107;  // of a Unix socket
constexpr size_t kAddressShownMax = 80;
constexpr int kPortMax = 65535;
constexpr int kDatabaseMax = 9999;
constexpr int kPortDefault = 6379;

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  std::string shown(text.substr(0, kAddressShownMax));
  for (char& c : shown) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::InvalidArgumentError(absl::StrCat("'", shown, "' ", why, "; expected ", kForms));
}

absl::Status RefusePassword() {
  return absl::InvalidArgumentError(
      "holds a password, which status and every checkpoint would show; expected "
      "redis://[USER@]HOST[:PORT][/DATABASE]: put the password into a file and start agents with "
      "--store-passwords FILE");
}

bool IsWord(absl::string_view text, absl::string_view others) {
  for (const char c : text) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        !absl::StrContains(others, std::string(1, c))) {
      return false;
    }
  }
  return !text.empty();
}

bool ReadNumber(absl::string_view text, int most, int* number) {
  return IsWord(text, "") && absl::SimpleAtoi(text, number) && *number >= 0 && *number <= most;
}

absl::StatusOr<RedisAddress> ParseUnix(absl::string_view text, absl::string_view path) {
  RedisAddress address;
  address.is_unix = true;
  address.path = std::string(path);
  if (!absl::StartsWith(path, "/") || path.size() < 2) {
    return Refuse(text, "has no absolute path of a Unix socket");
  }
  if (path.size() > kPathBytesMax) {
    return Refuse(text, absl::StrCat("has a path of ", path.size(),
                                     " bytes, a socket's has at most ", kPathBytesMax));
  }
  if (!IsWord(path, "/._-+@:,=")) return Refuse(text, "has a character that no path here has");
  return address;
}

// Parses "HOST", "HOST:PORT", "[ADDRESS]" or "[ADDRESS]:PORT".
absl::Status ParseHost(absl::string_view text, absl::string_view place, RedisAddress* address) {
  absl::string_view port;
  bool has_port = false;
  if (absl::ConsumePrefix(&place, "[")) {
    const size_t end = place.find(']');
    if (end == absl::string_view::npos) return Refuse(text, "has a [ without its ]");
    address->host = std::string(place.substr(0, end));
    place.remove_prefix(end + 1);
    has_port = absl::ConsumePrefix(&place, ":");
    if (!has_port && !place.empty()) return Refuse(text, "has something behind its ]");
    port = place;
    if (!IsWord(address->host, ":.%")) return Refuse(text, "has no IPv6 address in its brackets");
  } else {
    const size_t colon = place.find(':');
    address->host = std::string(place.substr(0, colon));
    has_port = colon != absl::string_view::npos;
    if (has_port) port = place.substr(colon + 1);
    if (address->host.empty()) return Refuse(text, "has no host");
    if (!IsWord(address->host, "._-")) return Refuse(text, "has no host name in it");
  }
  if (has_port && (!ReadNumber(port, kPortMax, &address->port) || address->port == 0)) {
    return Refuse(text, absl::StrCat("has no port from 1 to ", kPortMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisAddress> ParseTcp(absl::string_view text, absl::string_view rest,
                                      bool has_tls) {
  RedisAddress address;
  address.has_tls = has_tls;
  const size_t at = rest.rfind('@');
  if (at != absl::string_view::npos) {
    const absl::string_view user = rest.substr(0, at);
    if (absl::StrContains(user, ":")) return RefusePassword();
    if (!IsWord(user, "._-")) {
      return Refuse(rest.substr(at),
                    "follows a user name of other characters than letters, digits, "
                    "'.', '_' and '-'");
    }
    address.user = std::string(user);
    rest.remove_prefix(at + 1);
  }
  const size_t slash = rest.find('/');
  if (slash != absl::string_view::npos && slash + 1 < rest.size() &&
      !ReadNumber(rest.substr(slash + 1), kDatabaseMax, &address.database)) {
    return Refuse(text, absl::StrCat("has no database number from 0 to ", kDatabaseMax));
  }
  RETURN_IF_ERROR(ParseHost(text, rest.substr(0, slash), &address));
  return address;
}

}  // namespace

absl::StatusOr<RedisAddress> ParseRedisAddress(absl::string_view text) {
  absl::string_view rest = text;
  const auto parse = [&]() -> absl::StatusOr<RedisAddress> {
    if (text.size() > kTextBytesMax) return Refuse(text, "is too long");
    if (absl::ConsumePrefix(&rest, "redis://")) return ParseTcp(text, rest, false);
    if (absl::ConsumePrefix(&rest, "rediss://")) return ParseTcp(text, rest, true);
    if (absl::ConsumePrefix(&rest, "redis+unix://") || absl::ConsumePrefix(&rest, "unix://") ||
        absl::ConsumePrefix(&rest, "unix:")) {
      return ParseUnix(text, rest);
    }
    // The text may be an address with a password and a mistyped scheme.
    if (absl::StrContains(text, "@")) return RefusePassword();
    return Refuse(text, "is no address of a store");
  };
  return parse();
}

std::string ToText(const RedisAddress& address) {
  if (address.is_unix) return absl::StrCat("redis+unix://", address.path);
  const bool has_brackets = absl::StrContains(address.host, ":");
  return absl::StrCat(address.has_tls ? "rediss://" : "redis://", address.user,
                      address.user.empty() ? "" : "@", has_brackets ? "[" : "", address.host,
                      has_brackets ? "]" : "", ":", address.port,
                      address.database == 0 ? "" : absl::StrCat("/", address.database));
}

}  // namespace megascale::comm
