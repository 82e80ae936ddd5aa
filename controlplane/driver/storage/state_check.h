// Compares the driver's log with the folders of its jobs, before it is believed. A folder is made
// once its job's submit is durable, so a folder that the log does not know means that the log lost
// something: a driver that went on would forget jobs, count attempts again from 1 and start what
// already runs. Folders of jobs that the driver forgot on purpose say so. Thread-safe: a plain
// function. Blocking: storage.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "controlplane/driver/storage/event_log.h"

namespace megascale::driver {

// `state_directory`/jobs/ID/ against `log`. OK where there is no such directory.
// Errors: DataLoss - a job's folder that the log knows nothing of: names it, and what to do; those
// of LogStore::ReadAll.
absl::Status CheckJobFolders(const std::string& state_directory, LogStore* log);

}  // namespace megascale::driver
