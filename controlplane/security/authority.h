// A small certificate authority in a folder: makes itself, and signs certificates for the driver,
// agents and users of one cluster. Keys are EC P-256. Files: ca.pem and ca.key, NAME.pem and
// NAME.key; keys are 0600, a folder that is made is 0700. Nothing is ever overwritten. Threads:
// any.
//
// A private key is as good as its folder: who reads ca.key can make a certificate for anybody, so
// it stays on the machine where it was made.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/security/certificate.h"

namespace megascale::security {

struct CertificateRequest {
  Role role = Role::kUser;
  std::string name;                // common name, and of its files: letters, digits, '.', '-', '_'
  std::vector<std::string> hosts;  // DNS names and addresses; a driver's needs one at least
  // From an hour ago (clocks differ) until this; at most as long as the authority's own.
  absl::Time not_after;
};

struct IssuedCertificate {
  std::string certificate_path;
  std::string key_path;
  Certificate certificate;
};

// Makes ca.pem and ca.key in `directory`, valid for `lifetime` from now, and the first
// certificates. Errors: as IssueCertificate, for each of them; AlreadyExists - any of the files is
// there, then none is made; FailedPrecondition - others may write into the folder.
absl::StatusOr<std::vector<IssuedCertificate>> MakeAuthority(
    const std::string& directory, absl::Duration lifetime,
    const std::vector<CertificateRequest>& requests);

// Makes NAME.pem and NAME.key in `directory`, signed by the authority there.
// Errors: InvalidArgument - the request; AlreadyExists - NAME.pem or NAME.key; NotFound - no
// authority there; FailedPrecondition - the authority has expired, or its key is of another one.
absl::StatusOr<IssuedCertificate> IssueCertificate(const std::string& directory,
                                                   const CertificateRequest& request);

}  // namespace megascale::security
