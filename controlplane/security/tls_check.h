// Checks a program's own PEM files before they are used, so that a mistake in them gives one clear
// line instead of a failed handshake. Threads: any.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace megascale::security {

// Reads the files and checks that a program in `role` can use them.
//
// It refuses a key that others may read, as ssh does, because a warning would change nothing. If
// the key belongs to another user (such as root, with a group of readers), only a key that
// everybody may read is refused.
//
// Errors, each with the option, the file and what to do:
//   InvalidArgument - one of the three files is not given, cannot be read or has no PEM; the key is
//     encrypted, open to others, or belongs to another certificate; the certificate has another
//     role.
//   Unauthenticated - the certificate has expired, or is not valid yet.
absl::StatusOr<TlsPems> LoadTlsFiles(const TlsFiles& files, Role role);

// Returns a warning if the certificate expires within 30 days; else "".
std::string ExpiryWarning(const TlsFiles& files, absl::Time now);

}  // namespace megascale::security
