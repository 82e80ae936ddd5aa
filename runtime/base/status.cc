#include "runtime/base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace megascale::base {
namespace {

constexpr char kErrnoPayload[] = "megascale.errno";

std::string OpenFilesLimit() {
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return absl::StrCat(limit.rlim_cur);
}

// Returns the reason and the next action, in one line.
std::string ErrorText(int error) {
  switch (error) {
    case ENOSPC:
      return "disk full; free some space there, or choose another directory";
    case EDQUOT:
      return "disk quota used up; delete files of this user there, or have the quota raised";
    case EROFS:
      return "the file system is read-only; mount it for writing, or choose another directory";
    case EFBIG:
      return "file too large for the file system or for the limit `ulimit -f`; raise the limit, or "
             "choose another directory";
    case EMFILE:
      return absl::StrCat("too many open files: the limit of this process is ", OpenFilesLimit(),
                          "; raise it with `ulimit -n` before it starts");
    case ENFILE:
      return "too many open files on this machine; raise the sysctl fs.file-max";
    default:
      return std::strerror(error);
  }
}

}  // namespace

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", ErrorText(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return WithErrno(absl::ResourceExhaustedError(message), error);
    case EROFS:
    case EFBIG:
      return WithErrno(absl::FailedPreconditionError(message), error);
    default:
      return WithErrno(absl::Status(absl::ErrnoToStatusCode(error), message), error);
  }
}

int ErrnoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrnoPayload);
  int error = 0;
  return payload.has_value() && absl::SimpleAtoi(std::string(*payload), &error) ? error : 0;
}

absl::Status WithErrno(absl::Status status, int error) {
  if (error != 0) status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error)));
  return status;
}

bool IsOutOfMemory(const absl::Status& status) {
  const int error = ErrnoOf(status);
  return absl::IsResourceExhausted(status) && (error == 0 || error == ENOMEM);
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace megascale::base
