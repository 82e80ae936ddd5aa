// Finds out why a channel cannot be made. gRPC reports "unavailable" for everything that goes wrong
// before the first call; the probe repeats the handshake and names the reason.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controlplane/address/address.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace megascale::security {

// Connects to a driver at a TCP address as the channel of a client in `role` with these files would
// (without files: in plaintext). OK: the handshake works. Blocking: at most about twice `timeout`
// for every address that the host's name has. Errors:
//   Unavailable - no driver answers: refused, no route, no such name, or no answer in time.
//   Unauthenticated - one side refuses the other; the message says which, why and what to do.
absl::Status ProbeDriver(const client::Address& address, const TlsFiles& files, Role role,
                         absl::Duration timeout);

}  // namespace megascale::security
