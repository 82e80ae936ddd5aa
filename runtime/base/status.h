// Helpers to pass absl::Status up: RETURN_IF_ERROR, ASSIGN_OR_RETURN, and context for messages.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// Returns `status` with "`context`: " before its message, and with its payloads; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// Returns the Status of a failed system call, with message "`what`: <why>". Where a person has to
// act, the message has the next action: a full disk, a used-up quota, a read-only file system, a
// file that is too large, too many open files (with this process's limit). The code follows from
// `error` (an errno): exhausted resources (ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM) become
// ResourceExhausted, ENOENT NotFound, EACCES and EPERM PermissionDenied, EROFS and EFBIG
// FailedPrecondition.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Returns the errno from which ErrnoStatus made a status; 0: another status. Annotate keeps it.
int ErrnoOf(const absl::Status& status);
// Returns `status` with the errno `error` attached, for an errno that was sent separately; 0:
// returns `status` unchanged.
absl::Status WithErrno(absl::Status status, int error);
// Whether a status is ResourceExhausted for lack of memory, rather than of disk or descriptors.
bool IsOutOfMemory(const absl::Status& status);

// Returns the name of a code, such as "INVALID_ARGUMENT".
std::string CodeName(absl::StatusCode code);

}  // namespace megascale::base

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define MEGASCALE_CONCAT_(a, b) a##b
#define MEGASCALE_CONCAT(a, b) MEGASCALE_CONCAT_(a, b)
#define MEGASCALE_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  declaration = *std::move(result)

// ASSIGN_OR_RETURN(auto value, Compute());
#define ASSIGN_OR_RETURN(declaration, expression) \
  MEGASCALE_ASSIGN_OR_RETURN_(MEGASCALE_CONCAT(result_, __LINE__), declaration, expression)
