// What a certificate says: whose it is, what it may be used for, until when. Pure functions over
// PEM text. Threads: any.
//
// A certificate's role is its organizational unit (OU): "megascale driver", "megascale agent" or
// "megascale user". The driver lets agents connect as agents and users call the JobService, and
// nobody do both, so that a key taken from a machine of the cluster submits no job.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::security {

enum class Role { kNone, kDriver, kAgent, kUser };

// "driver", "agent", "user"; "none".
absl::string_view RoleName(Role role);
// Role::kNone for any other word.
Role RoleFromName(absl::string_view name);
// The organizational unit that gives a role; "" for kNone.
std::string RoleUnit(Role role);

struct Certificate {
  std::string name;                // common name
  std::string issuer;              // common name of who signed it
  Role role = Role::kNone;         // kNone also where there are several
  bool is_authority = false;       // may sign others
  std::vector<std::string> hosts;  // DNS names and addresses that it stands for
  absl::Time not_before;
  absl::Time not_after;
  std::string serial;       // hexadecimal
  std::string fingerprint;  // SHA-256 of the certificate, hexadecimal
};

// The first certificate of a PEM text. Errors: InvalidArgument - there is none.
absl::StatusOr<Certificate> DescribeCertificate(absl::string_view pem);

// "expires in 364 days (2027-11-20)", "expired 2 days ago (…)", "is valid only from … on".
std::string DescribeValidity(const Certificate& certificate, absl::Time now);

}  // namespace megascale::security
