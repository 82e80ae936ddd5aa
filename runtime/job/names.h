// The permitted names of jobs and paths. Names become names of folders, are sent in messages that
// must be UTF-8, and are shown on terminals. The command line checks them before it calls the
// driver; the driver checks them again, since other programs call it too. Threads: any; pure
// functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::job {

// Checks a job id: 1 to 128 letters, digits, '-', '_' and '.', beginning with a letter, digit or
// '_'. Errors: InvalidArgument - with the id, made printable.
absl::Status CheckJobId(absl::string_view job_id);

// Checks a path: absolute, UTF-8 without control characters, at most 4095 bytes (PATH_MAX). `field`
// names it in the message. Errors: InvalidArgument - with the path, made printable.
absl::Status CheckPath(absl::string_view field, absl::string_view path);

}  // namespace megascale::job
