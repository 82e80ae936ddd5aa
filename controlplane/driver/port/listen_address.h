// Makes the place where the driver listens ready, and refuses places where it must not.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "controlplane/client/address.h"

namespace megascale::driver {

// Makes the folder of a Unix-domain socket (owner-only) and removes the socket of a driver that has
// died. Errors: FailedPrecondition - a driver listens there, the path is no socket, or the folder
// is open to others.
absl::Status PrepareSocket(const std::string& path);

// Whether this process may listen on a TCP address: says which call fails and why, which gRPC tells
// its log only. Another process may still be faster. Errors: FailedPrecondition - the port is
// taken, the address is not this machine's, or the port is for root.
absl::Status CheckTcpAddress(const client::Address& address);

}  // namespace megascale::driver
