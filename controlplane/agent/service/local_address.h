// Finds the address of this machine that leads to another host.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace megascale::agent {

// Returns the numeric address from which packets to `host` (a name or an address) would leave.
// Sends no packet. Blocking: resolves the name. Errors: Unavailable - the name is unknown, or there
// is no route.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& host);

}  // namespace megascale::agent
