// What names of jobs and paths may look like. They become names of folders, go through messages
// that hold UTF-8 only, and are shown on terminals. The command line checks them before it calls
// the driver; the driver checks them again, because others call it too. Thread-safe: pure
// functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::job {

// 1 to 128 letters, digits, '-', '_' and '.', beginning with a letter, digit or '_'.
// Errors: InvalidArgument - with the id, made printable.
absl::Status CheckJobId(absl::string_view job_id);

// An absolute path of UTF-8 without control characters, at most 4095 bytes (PATH_MAX). `field` is
// what the message calls it. Errors: InvalidArgument.
absl::Status CheckPath(absl::string_view field, absl::string_view path);

}  // namespace megascale::job
