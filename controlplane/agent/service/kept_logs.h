// Which logs of its processes an agent keeps: LOG_DIRECTORY/JOB/attempt-N/… The log of a process
// has at most two segments (launch/log_file.h). Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace megascale::agent {

// This many attempts of a job keep their logs: the newest ones.
inline constexpr size_t kAttemptLogsKept = 16;

// The jobs that are not on this machine any more: the newest of them keep their logs, as long as
// these have no more bytes than this in all; the newest one keeps them whatever their size.
struct JobLogsKept {
  size_t jobs = 64;
  int64_t bytes = int64_t{4} << 30;
};

// Deletes all but the newest `count` entries of a directory, by modification time.
void PruneDirectory(const std::string& directory, size_t count);

// Deletes the logs of jobs that are not in `present`, oldest first, until `kept` holds. Folders
// that have anything but attempts are no job's, and stay. Agents must not share the directory.
void PruneJobLogs(const std::string& log_directory, const std::set<std::string>& present,
                  const JobLogsKept& kept = {});

}  // namespace megascale::agent
