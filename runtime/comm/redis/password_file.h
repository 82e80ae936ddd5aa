// Where an agent finds the password of a store: not in the job file, which everybody may read, and
// which only names a server. A password is sent to the server that its line names and to no other,
// so that a job cannot send it elsewhere. Thread-safe: a plain function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/comm/redis/address.h"

namespace megascale::comm {

// The password for `address` in the file at `path`: of the first line "ADDRESS PASSWORD" with the
// same scheme, user, host and port, or path; the database does not matter. Empty lines and lines
// that begin with # are skipped; the password is the rest of the line. Empty: no line names the
// server. Errors: FailedPrecondition - the file cannot be read, others may read it, or a line is
// none. Messages give line numbers, never what stands there.
absl::StatusOr<std::string> FindPassword(const std::string& path, const RedisAddress& address);

}  // namespace megascale::comm
