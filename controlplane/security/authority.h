// A small certificate authority in a folder. It signs certificates for the driver, agents and users
// of one cluster. Keys are EC P-256. Files: ca.pem and ca.key, NAME.pem and NAME.key. Keys have
// mode 0600, a folder that is created has 0700. Files are never overwritten. Threads: any.
//
// Whoever can read ca.key can make a certificate for anybody, so keep it on the machine where it
// was made.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/security/certificate.h"

namespace megascale::security {

struct CertificateRequest {
  Role role = Role::kUser;
  std::string name;                // common name and file name: letters, digits, '.', '-', '_'
  std::vector<std::string> hosts;  // DNS names and addresses; a driver's needs at least one
  // The end of its validity, at most the end of the validity of the authority's certificate. The
  // validity begins an hour before now, because clocks differ.
  absl::Time not_after;
};

struct IssuedCertificate {
  std::string certificate_path;
  std::string key_path;
  Certificate certificate;
};

// Makes ca.pem and ca.key in `directory`, valid for `lifetime` from now, and the requested
// certificates. Errors: as IssueCertificate, for each certificate; AlreadyExists - one of the files
// exists, so no file is made; FailedPrecondition - others may write into the folder.
absl::StatusOr<std::vector<IssuedCertificate>> MakeAuthority(
    const std::string& directory, absl::Duration lifetime,
    const std::vector<CertificateRequest>& requests);

// Makes NAME.pem and NAME.key in `directory`, signed by the authority there.
// Errors: InvalidArgument - the request is invalid; AlreadyExists - NAME.pem or NAME.key exists;
// NotFound - the folder has no authority; FailedPrecondition - the authority has expired, or its
// key does not match its certificate.
absl::StatusOr<IssuedCertificate> IssueCertificate(const std::string& directory,
                                                   const CertificateRequest& request);

}  // namespace megascale::security
