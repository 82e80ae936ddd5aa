// The lists of the files of jobs' data: the SHA-256 of each file, one a line, in a file of the
// job's folder. Agents report only a digest of the list; the driver asks an agent for the list once
// a job, and tells it an agent whose files differ, so that the file that differs can be named. A
// job works without its list. Threads: one owner. Blocking: the disk, without waiting for it to
// sync.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/storage/job_files.h"
#include "proto/agent.pb.h"

namespace megascale::driver {

inline constexpr char kDataFilesFile[] = "data-files.sha256";

class DataFileLists {
 public:
  // `files` outlives the object.
  explicit DataFileLists(JobFiles* files) : files_(*files) {}

  // Returns whether an agent must be asked for the job's list now: it is missing, and nobody was
  // asked within the last minute. Writes a list that the job's record has.
  bool IsDue(const JobRecord& job, absl::Duration now);
  // Writes the list, if it is that of the job.
  void Take(const JobRecord& job, const megascale::agent::v1::DataFiles& list);
  // Returns the list, or a code. `fetch`: the question that it answers.
  megascale::agent::v1::DataFiles Read(const JobRecord* job,
                                       const megascale::agent::v1::FetchDataFiles& fetch) const;
  void Forget(const std::string& job_id) { asked_.erase(job_id); }

 private:
  static std::string PathOf(const JobRecord& job);

  JobFiles& files_;
  std::map<std::string, absl::Duration> asked_;  // by job; infinite: the list is there
};

}  // namespace megascale::driver
