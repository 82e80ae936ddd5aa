// The contents of a certificate: its owner, role and validity. Pure functions over PEM text.
// Threads: any.
//
// A certificate's role is its organizational unit (OU): "megascale driver", "megascale agent" or
// "megascale user". Only agents may call the AgentService and only users the JobService, so a key
// stolen from a machine of the cluster cannot submit jobs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::security {

enum class Role { kNone, kDriver, kAgent, kUser };

// Returns "driver", "agent", "user" or "none".
absl::string_view RoleName(Role role);
// Returns the role of that name; kNone for any other word.
Role RoleFromName(absl::string_view name);
// Returns the organizational unit that gives a role; "" for kNone.
std::string RoleUnit(Role role);

struct Certificate {
  std::string name;                // common name
  std::string issuer;              // common name of the signer
  Role role = Role::kNone;         // kNone also if it has several roles
  bool is_authority = false;       // may sign other certificates
  std::vector<std::string> hosts;  // DNS names and addresses that it is valid for
  absl::Time not_before;
  absl::Time not_after;
  std::string serial;       // hexadecimal
  std::string fingerprint;  // SHA-256 of the certificate, hexadecimal
};

// Returns the first certificate of a PEM text. Errors: InvalidArgument - the text has no
// certificate.
absl::StatusOr<Certificate> DescribeCertificate(absl::string_view pem);

// Returns "expires in 364 days (2027-11-20)", "expired 2 days ago (…)" or "is valid only from …
// on".
std::string DescribeValidity(const Certificate& certificate, absl::Time now);

}  // namespace megascale::security
