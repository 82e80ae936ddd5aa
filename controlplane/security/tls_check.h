// Looks at a program's own PEM files before they are used, so that a mistake is one clear line and
// not a failed handshake. Threads: any.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace megascale::security {

// Reads the files and checks that they can be used by a `role`.
//
// A key that others may read is refused, as ssh does: with a warning it would stay so. A key that
// belongs to another user (root, with a group for its readers) is that user's affair, as long as
// the world cannot read it.
//
// Errors, each with the option, the file and what to do:
//   InvalidArgument - one of the three is not given, cannot be read, holds no PEM; the key is
//     encrypted, open to others, or of another certificate; the certificate has another role.
//   Unauthenticated - the certificate has expired, or is not valid yet.
absl::StatusOr<TlsPems> LoadTlsFiles(const TlsFiles& files, Role role);

// A line to warn with where the certificate's end is near (30 days); else "".
std::string ExpiryWarning(const TlsFiles& files, absl::Time now);

}  // namespace megascale::security
