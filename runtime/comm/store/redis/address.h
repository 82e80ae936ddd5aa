// The address of a Redis server, as `store:` of a job file gives it. Thread-safe: plain functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::comm {

struct RedisAddress {
  bool is_unix = false;
  bool has_tls = false;  // of TCP only
  std::string host;      // of TCP: a name, an IPv4 address or an IPv6 address without brackets
  int port = 6379;       // of TCP
  std::string path;      // of a Unix socket: absolute
  std::string user;      // empty: the server's default user
  int database = 0;      // 0 to 9999

  bool operator==(const RedisAddress&) const = default;
};

// Reads "redis://[USER@]HOST[:PORT][/DATABASE]", the same with "rediss" for TLS,
// "redis+unix:///PATH" or "unix:/PATH". Errors: InvalidArgument - none of these; with a password in
// it, which a job file must not hold: the message does not repeat the text then.
absl::StatusOr<RedisAddress> ParseRedisAddress(absl::string_view text);

// The address in one form, as messages show it and as equal addresses are told:
// "redis://host:6379", "rediss://user@[::1]:6380/2", "redis+unix:///run/redis.sock".
std::string ToText(const RedisAddress& address);

}  // namespace megascale::comm
