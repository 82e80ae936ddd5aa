// Says why a channel cannot be made. gRPC answers "unavailable" to everything that goes wrong
// before the first call; this makes the same handshake once more and names the reason.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controlplane/client/address.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace megascale::security {

// Connects to a driver at a TCP address, as the channel of a client in `role` with these files
// would (no files: in plaintext). OK where nothing is wrong with the handshake. Blocking: at most
// about twice `timeout` for every address that the host's name has. Errors:
//   Unavailable - nobody answers there: refused, no route, no such name, no answer in time.
//   Unauthenticated - one side refuses the other: who, what was found, what to do.
absl::Status ProbeDriver(const client::Address& address, const TlsFiles& files, Role role,
                         absl::Duration timeout);

}  // namespace megascale::security
