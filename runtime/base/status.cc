#include "runtime/base/status.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace megascale::base {

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  if (error == ENOSPC || error == EMFILE || error == ENFILE || error == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
  }
  return absl::ErrnoToStatus(error, what);
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace megascale::base
