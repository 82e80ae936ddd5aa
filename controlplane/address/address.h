// The address on which a driver listens: "unix:/absolute/path", or "host:port". Pure functions,
// except ChooseAddress and DefaultAddress, which read the environment.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::client {

struct Address {
  std::string text;       // normalised, as gRPC takes it
  std::string unix_path;  // path of the Unix-domain socket; empty for TCP
  std::string host;       // TCP host, without brackets
  int port = 0;
  bool loopback = false;  // TCP that cannot leave this machine: 127.x.x.x, ::1, localhost

  bool is_unix() const { return !unix_path.empty(); }
};

// Reads "unix:/path", "unix:///path", "/path", "host:port" or "[::1]:port".
// Errors: InvalidArgument - `text` has none of these forms, or its socket path is longer than the
// system allows (107 bytes).
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Returns `given` if it is not empty, else the environment's MEGASCALE_ADDRESS, else
// DefaultAddress().
// Errors: as ParseAddress, naming where the address came from.
absl::StatusOr<Address> ChooseAddress(absl::string_view given);

// Returns unix:$XDG_RUNTIME_DIR/megascale/driver.sock. If that directory does not exist or belongs
// to another user (sudo may leave the variable set), returns unix:/tmp/megascale-UID/driver.sock.
// The driver creates the folder, for its owner only.
std::string DefaultAddress();

}  // namespace megascale::client
