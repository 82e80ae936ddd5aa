// Finds the password of a store in a file of the agent. The job file, which every user may read,
// only names the server. A password is sent only to the server that its line names, so that a job
// cannot make the agent send it elsewhere. Threads: any; a plain function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/comm/store/redis/address.h"

namespace megascale::comm {

// Returns the password for `address` from the file at `path`: the rest of the first line "ADDRESS
// PASSWORD" with the same scheme, user, host and port, or path. The database is ignored. Empty
// lines and lines that begin with # are skipped. Returns "" if no line names the server. Errors:
// FailedPrecondition - the file cannot be read, other users may read it, or a line is malformed.
// Messages give line numbers, never the content of a line.
absl::StatusOr<std::string> FindPassword(const std::string& path, const RedisAddress& address);

}  // namespace megascale::comm
