// The metrics of jobs with `tensorboard: true`, as event files that TensorBoard reads: in the
// folder tensorboard/ of a job's folder, one file for each start of the driver. It follows the loss
// log: after a rollback TensorBoard drops the steps that are computed again. An error in these
// files affects nothing else: it is logged once, and no further events of the job are written until
// the driver starts again. Threads: one owner. Blocking: the disk, without waiting for it to sync.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/loss_log.h"

namespace megascale::driver {

class TensorBoardLogs {
 public:
  // `files` outlives the object.
  explicit TensorBoardLogs(JobFiles* files) : files_(*files) {}

  // Writes the records that the log has in memory and that are not written yet. `directory`: the
  // job's. `wall`: the time of day.
  void Follow(const std::string& job_id, const std::string& directory, const LossLog& log,
              absl::Time wall);
  void Forget(const std::string& job_id) { jobs_.erase(job_id); }

 private:
  struct Entry {
    std::unique_ptr<AppendedFile> file;
    int64_t step = 0;     // newest one written
    int64_t attempt = 0;  // of this step
    bool failed = false;
  };
  absl::Status Write(const std::string& directory, const LossLog& log, absl::Time wall,
                     Entry* entry);

  JobFiles& files_;
  std::map<std::string, Entry> jobs_;
};

// Returns `data` in the frame of an event file: its length, its bytes, and a masked CRC-32C of
// each.
std::string EventRecord(absl::string_view data);

}  // namespace megascale::driver
