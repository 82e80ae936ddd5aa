// Makes the place where the driver listens ready, and refuses places where it must not.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace megascale::driver {

// Makes the folder of a Unix-domain socket (owner-only) and removes the socket of a driver that has
// died. Errors: FailedPrecondition - a driver listens there, the path is no socket, or the folder
// is open to others.
absl::Status PrepareSocket(const std::string& path);

}  // namespace megascale::driver
