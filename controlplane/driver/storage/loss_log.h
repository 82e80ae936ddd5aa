// The file metrics.jsonl of a job: one JSON line per completed step, in order, each step exactly
// once. A rollback cuts it back to the restore point and moves the cut lines to
// metrics.attempt-N.jsonl. Only the end of the file is read, however long it is. Lines that are no
// records (a bad sector, a crash of the machine) are skipped with a warning; they stay in the file.
// Threads: one owner. Ownership: the file is written by the driver alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/recent_steps.h"
#include "proto/telemetry.pb.h"

namespace megascale::driver {

class LossLog {
 public:
  using StepRecord = megascale::telemetry::v1::StepRecord;

  // The number of newest records in memory, for watchers and rates.
  static constexpr size_t kRecentMax = RecentSteps::kMax;

  // Opens or creates `directory`/metrics.jsonl. Removes a torn last line (a crash while it was
  // written). `files` must outlive the log. Errors: those of the file system.
  static absl::StatusOr<std::unique_ptr<LossLog>> Open(const std::string& directory,
                                                       JobFiles* files);

  // Adds the record if it is the next step; an empty log takes any step as its first. Ignores
  // repeated steps and steps after a gap; the agents send steps after a gap again. Durable after
  // Sync.
  absl::Status Append(const StepRecord& record);

  // Makes appended records durable; cheap if there are no new ones.
  absl::Status Sync();
  // Returns true if all records are durable.
  bool is_synced() const { return !dirty_; }

  // Checks whether somebody deleted, moved or replaced the file. If so, opens the file at the path,
  // or creates it if it is missing, and durably adds the steps in memory that the file lacks.
  // Returns what happened, for people; "": the file is in its place. Cost: two system calls if the
  // file is in its place.
  absl::StatusOr<std::string> Mend();
  // Returns false if Mend has something to do.
  bool IsAtItsPath() const { return file_ == nullptr || file_->IsAtItsPath(); }
  // Durably adds those of `records`, the log's newest records, that the file lacks. If the file
  // contradicts them, first cuts its steps from the first of `records` on: a copy from before a
  // rollback has steps of another attempt.
  absl::Status PutBack(const std::vector<StepRecord>& records);
  // Returns what happened to a file that lacks some of `records`, for people. Call before PutBack.
  // `is_all`: the log had no steps before them.
  std::string DescribeLoss(const std::vector<StepRecord>& records, bool is_all) const;

  // Closes the file; records in memory stay readable. For a job that has ended.
  void Close() { file_.reset(); }

  // Cuts steps beyond `step` that attempts before `attempt` computed, and moves them to
  // metrics.attempt-(attempt-1).jsonl. If lines at the end of what is kept were damaged on the
  // disk, writes them again from memory, but only if there is something to cut. Idempotent,
  // durable.
  absl::Status CutTo(int64_t step, int64_t attempt);

  // True if steps before `step` are missing.
  bool HasGapBefore(int64_t step) const { return next_step_ != 0 && step > next_step_; }
  // Makes `step` the next step and leaves out the steps before it that are missing. Nobody has them
  // any more, because they were acknowledged and their lines were lost. Does nothing if the log is
  // empty or has the step.
  void GoOnAt(int64_t step);

  // Cuts steps beyond `step`, which a failed Sync may have left partly on the disk. The agents send
  // them again.
  absl::Status DropAfter(int64_t step);

  // Continues the positions of a log of the same file that failed: its newest durable step was
  // `step`, and a reader that had got it was at `position`.
  void ContinueFrom(int64_t step, int64_t position);
  // The position of a reader that has got all durable records.
  int64_t synced_position() const { return synced_position_; }

  // The newest durable step; 0: the log is empty.
  int64_t synced_step() const { return synced_step_; }
  // The newest step; 0: the log is empty.
  int64_t last_step() const { return recent_.empty() ? 0 : recent_.back().step(); }
  const RecentSteps& recent() const { return recent_; }
  // Returns the records appended since `position` that are still in memory and were not cut, and
  // moves `position` to the end. A position of -1 returns no records.
  std::vector<StepRecord> Since(int64_t* position) const { return recent_.Since(position); }

 private:
  LossLog(std::string path, JobFiles* files, std::unique_ptr<AppendedFile> file);
  // Reads the newest records from the first `size_bytes` bytes of the file.
  absl::Status Load(size_t size_bytes);
  // Finds the end of the steps that are kept: every line after it is of a step beyond `step` and of
  // an attempt before `attempt`, or torn. Cost: reads what is to be cut.
  struct Rest {
    size_t begin = 0;
    size_t end = 0;
    std::string text;  // from the first step that is to be cut; empty: there is none
  };
  absl::StatusOr<Rest> FindRest(int64_t step, int64_t attempt);
  // Loads the file, which was just cut to `size_bytes`, and puts back what it lacks of `kept`.
  // After an error the log has in memory what it had before.
  absl::Status LoadKept(size_t size_bytes, const std::vector<StepRecord>& kept);
  // Appends those of the records, which were in memory, that a file which was just loaded lacks at
  // its end.
  absl::Status PutBackDamaged(const std::vector<StepRecord>& records);

  std::string path_;
  JobFiles& files_;
  std::unique_ptr<AppendedFile> file_;
  RecentSteps recent_;
  int64_t next_step_ = 0;  // 0: any step may be the first
  int64_t synced_step_ = 0;
  int64_t synced_position_ = 0;
  bool dirty_ = false;
};

}  // namespace megascale::driver
