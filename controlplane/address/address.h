// Where a driver listens: "unix:/absolute/path", or "host:port". Pure functions but for
// DefaultAddress, which reads the environment.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::client {

struct Address {
  std::string text;       // normalised; what gRPC connects to or listens on
  std::string unix_path;  // of a Unix-domain socket; empty for TCP
  std::string host;       // of TCP, without brackets
  int port = 0;
  bool loopback = false;  // TCP that cannot leave this machine: 127.x.x.x, ::1, localhost

  bool is_unix() const { return !unix_path.empty(); }
};

// Reads "unix:/path", "unix:///path", "/path", "host:port" or "[::1]:port".
// Errors: InvalidArgument - neither of these, or a socket path longer than the system allows (107
// bytes).
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// `given` where it is not empty, else the environment's MEGASCALE_ADDRESS, else DefaultAddress().
// Errors: as ParseAddress, naming where the address came from.
absl::StatusOr<Address> ChooseAddress(absl::string_view given);

// unix:$XDG_RUNTIME_DIR/megascale/driver.sock, or unix:/tmp/megascale-UID/driver.sock where there
// is no such directory. The folder is made by the driver, for its owner only.
std::string DefaultAddress();

}  // namespace megascale::client
