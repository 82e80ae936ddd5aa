// A TCP socket that listens, for servers of the control plane.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::base {

// Listens on the first address to which `host` resolves. Like gRPC, it may take a port whose last
// connections are still closing. Non-blocking. `host`: a name, or an IP address without brackets;
// `port` 0: any. Blocking: it may look up a name. Errors: FailedPrecondition - the message is the
// system's reason alone.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port, int backlog);

// As ListenTcp, on every address to which `host` resolves and on which this machine can listen;
// with `port` 0 on one port for all. "localhost" is 127.0.0.1 and ::1.
absl::StatusOr<std::vector<UniqueFd>> ListenTcpEverywhere(const std::string& host, int port,
                                                          int backlog);

// Returns the port of a TCP socket; 0: it has none.
int PortOf(int fd);

}  // namespace megascale::base
