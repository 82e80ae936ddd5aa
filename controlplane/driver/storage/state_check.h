// Checks the driver's log against the folders of its jobs before the driver uses it. A job's folder
// is created only once its submit is durable. So if a folder's job is missing from the log, the log
// has lost events. A driver that continued would forget jobs, count attempts from 1 again and start
// ranks that already run. The file kForgottenFile marks folders of jobs that the driver forgot on
// purpose. Thread-safe: a plain function. Blocking: storage.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "controlplane/driver/storage/event_log.h"

namespace megascale::driver {

// Checks the folders `state_directory`/jobs/ID/ against `log`. OK if there is no such directory.
// Errors: DataLoss - a folder whose job is missing from the log; the message names it and says what
// to do; and those of EventLog::ReadAll.
absl::Status CheckJobFolders(const std::string& state_directory, EventLog* log);

// Checks that the job, which a user submits, keeps its checkpoints outside the driver's state, or
// in its own default place there. Symlinks and `..` are resolved on the driver's machine. Errors:
// InvalidArgument.
absl::Status CheckOutsideState(const v1::JobSubmitted& submit, const std::string& state_directory);

}  // namespace megascale::driver
