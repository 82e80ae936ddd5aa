// Copies of a driver's log. A copy may be made while the driver runs. A restored copy begins a new
// epoch (controlplane/driver/core/epoch.h), so that agents obey it although they have served a
// later state. Blocking: the disk.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megascale::driver {

// Copies the log of `state_directory` to `copy`, which must not exist. Returns how many jobs the
// log has.
absl::StatusOr<int> BackUpLog(const std::string& state_directory, const std::string& copy);

// Makes the log of `state_directory` from `copy`. Folders of jobs that the copy does not know are
// moved to jobs.before-restore, because a driver refuses a log that lacks a job. `now`: wall time.
// Returns how many jobs the log has. Errors: AlreadyExists - the directory has a log already, which
// must be moved away first; DataLoss - the copy is not whole; PermissionDenied - other users may
// write to one of the two.
absl::StatusOr<int> RestoreLog(const std::string& copy, const std::string& state_directory,
                               absl::Time now);

// Refuses a directory that BackUpLog made: a driver would write into the copy, which could not be
// restored any more. Errors: FailedPrecondition.
absl::Status CheckIsNoBackup(const std::string& state_directory);

}  // namespace megascale::driver
