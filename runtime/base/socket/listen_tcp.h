// A TCP socket that listens, for servers of the control plane.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::base {

// Listens on the first address to which `host` resolves. Like gRPC, it may take a port whose last
// connections are still closing. Non-blocking. `host`: a name, or an IP address without brackets;
// `port` 0: any. Blocking: it may look up a name. Errors: FailedPrecondition - the message is the
// system's reason alone.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port, int backlog);

}  // namespace megascale::base
