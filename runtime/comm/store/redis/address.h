// The address of a Redis server, as `store:` of a job file gives it. Threads: any; plain functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::comm {

struct RedisAddress {
  bool is_unix = false;
  bool has_tls = false;  // TCP only
  std::string host;      // TCP only: a name, an IPv4 address or an IPv6 address without brackets
  int port = 6379;       // TCP only
  std::string path;      // Unix socket only: absolute
  std::string user;      // empty: the server's default user
  int database = 0;      // 0 to 9999

  bool operator==(const RedisAddress&) const = default;
};

// Parses "redis://[USER@]HOST[:PORT][/DATABASE]", the same with "rediss" for TLS,
// "redis+unix:///PATH" or "unix:/PATH". Errors: InvalidArgument - another form, or a password in
// it, which a job file must not contain; the message then does not repeat the text.
absl::StatusOr<RedisAddress> ParseRedisAddress(absl::string_view text);

// Returns the address in its canonical form, for messages and to compare addresses:
// "redis://host:6379", "rediss://user@[::1]:6380/2", "redis+unix:///run/redis.sock".
std::string ToText(const RedisAddress& address);

}  // namespace megascale::comm
