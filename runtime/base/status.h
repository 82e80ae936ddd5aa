// Passing absl::Status up: RETURN_IF_ERROR, ASSIGN_OR_RETURN, and words added on the way.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// `status` with "`context`: " before its message, and its payloads; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// The Status of a failed system call: code from `error` (an errno), message "`what`: <why>", with
// the next action where a person has one to take: a full disk, a used-up quota, a file system that
// is read-only, a file that is too large, too many open files (with this process's limit).
// What there is too little of (ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM) becomes ResourceExhausted,
// ENOENT NotFound, EACCES and EPERM PermissionDenied, EROFS and EFBIG FailedPrecondition.
absl::Status ErrnoStatus(int error, absl::string_view what);

// The errno that a status of ErrnoStatus was made of; 0: none. Annotate keeps it.
int ErrnoOf(const absl::Status& status);
// `status` with that errno, where it had to travel beside it; 0: as it is.
absl::Status WithErrno(absl::Status status, int error);
// ResourceExhausted for want of memory, and not of disk or of descriptors.
bool IsOutOfMemory(const absl::Status& status);

// "INVALID_ARGUMENT" and its kin, without the message.
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
