// Prepares the address on which the driver listens, and refuses unsafe ones.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "controlplane/address/address.h"

namespace megascale::driver {

// Creates the folder of a Unix-domain socket (owner-only) and removes the socket of a dead driver.
// Errors: FailedPrecondition - a driver listens there, the path is not a socket, or the folder
// belongs to another user, is open to others, or is in a place where another user could replace it.
absl::Status PrepareSocket(const std::string& path);

// Checks that this process can listen on a TCP address. The error says which call fails and why,
// which gRPC writes only to its own log. Another process may still take the port before gRPC does.
// Errors: FailedPrecondition - the port is taken, the address is not this machine's, or only root
// may use the port.
absl::Status CheckTcpAddress(const client::Address& address);

}  // namespace megascale::driver
