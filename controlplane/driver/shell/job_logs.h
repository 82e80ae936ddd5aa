// The loss logs of all jobs, and what happens when a log cannot be written. Such an error affects
// no other job, and ends neither the driver nor the job.
//
// While a log fails, its steps are not acknowledged, so agents keep them. The job's checkpoints are
// not committed either: otherwise a checkpoint could remain whose earlier steps are lost. Every
// second the log is tried again. After kPatience, and some failures, it is set aside with a
// warning: the job continues without it, the log is tried again once a minute, and when it works
// again, it has a gap. If somebody deleted the file, the newest records that it had are put back
// from memory.
//
// To make a log durable costs a wait for the disk and, because the agents are then told so, a
// message to each of them. So there is a limit: where hundreds of jobs train, their logs take
// turns. Threads: one owner. Blocking: the disk.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/loss_log.h"

namespace megascale::driver {

class JobLogs {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(30);

  static constexpr absl::Duration kGapPatience = absl::Seconds(5);

  // Sync and SyncInTurn check that a log's file is still at its path, but not more often than this.
  static constexpr absl::Duration kLookInterval = absl::Seconds(1);

  // Time between two logs that SyncInTurn makes durable. If it is called less often, it catches up
  // with the logs of at most a second.
  static constexpr absl::Duration kSyncInterval = absl::Milliseconds(5);

  // `files` outlives the object.
  explicit JobLogs(JobFiles* files, absl::Duration sync_interval = kSyncInterval)
      : files_(*files), sync_interval_(sync_interval) {}

  // Returns the job's loss log, opened if need be; null: it cannot be used now. `now`: monotonic.
  LossLog* Open(const JobRecord& job, absl::Duration now);
  // Returns the job's loss log if it is open; null: it is not.
  const LossLog* Find(const std::string& job_id) const;

  // Appends to the job's log the records of its current attempt, and those of earlier attempts up
  // to the step from which the current one started. Ignores step numbers that the job does not
  // have. If steps are missing, another agent may still report them; after kGapPatience the log
  // continues without them. Returns the newest step that counts as completed.
  int64_t Append(const JobRecord& job,
                 const google::protobuf::RepeatedPtrField<LossLog::StepRecord>& records,
                 absl::Duration now);
  // Makes the appended records of some jobs durable: those that have waited longest first, one for
  // each sync interval that has passed. Returns these jobs, also those whose log fails.
  std::vector<std::string> SyncInTurn(absl::Duration now);
  // Makes the appended records of one job durable, at once. Puts a file back whose deletion it
  // notices (LossLog::Mend).
  void Sync(const std::string& job_id, absl::Duration now);
  // As Sync, for the last time: the job ends. Always looks whether the file was deleted.
  void Finish(const std::string& job_id, absl::Duration now);
  // Returns a warning for people: the job's log fails, or somebody deleted it; "": no warning.
  std::string WarningOf(const std::string& job_id) const;
  // Removes from the job's log the steps that were rolled back (the cut that its attempt needs,
  // CutOf): now, or when the log can be opened again, before it takes steps. Returns false while
  // the job's steps must wait for the cut; then call again.
  bool Cut(const JobRecord& job, absl::Duration now);

  // Returns true while the commit of a checkpoint of `step` must wait, because the log fails, or
  // because steps up to `step` are not durable yet and an agent may still report them. It waits for
  // such steps for at most `patience`. `awake`: as AgentReports::awake.
  bool HoldsCommit(const std::string& job_id, int64_t step, absl::Duration patience,
                   absl::Duration awake);
  // Returns the newest step that the agents need not send again; nullopt: there is no log.
  std::optional<int64_t> Acknowledged(const std::string& job_id) const;
  // Calls `take` with each job that has a log, and with its acknowledged step.
  void ForEachAcknowledged(const std::function<void(const std::string&, int64_t)>& take) const;

  // Closes the log of a job that has ended. If the log fails at this time, it may have steps that
  // were rolled back, or lack records that were deleted. Then RetryFailed goes on trying to correct
  // it, until it works or until Drop.
  void Forget(const std::string& job_id);
  // Tries again the logs that fail, whether their jobs get steps or not. Returns the jobs that have
  // not ended and whose logs work again. Call several times per second.
  std::vector<std::string> RetryFailed(absl::Duration now);
  // Gives up what is left to do for a job that is forgotten.
  void Drop(const std::string& job_id) { ended_.erase(job_id); }
  size_t num_open() const { return logs_.size(); }

 private:
  struct Entry {
    std::unique_ptr<LossLog> log;  // null: it could not be opened or written
    std::string directory;         // the job's folder
    // Cuts that could not be carried out yet, by attempt; an open log has none. A cut is left out
    // if a later cut removes the same steps.
    std::vector<LossLogCut> cuts;
    bool has_place = false;  // it is in waiting_
    int64_t synced = -1;     // the newest durable step when it failed; -1: unknown
    int64_t position = 0;    // LossLog::synced_position when it failed
    // Its durable records that were in memory when it failed, without what was cut since.
    std::vector<LossLog::StepRecord> kept;
    bool kept_all = false;   // it had no steps before these
    bool displaced = false;  // the file that failed was no longer at its path
    int64_t reported = 0;    // newest step that agents reported
    // While a cut is due: later steps are not acknowledged, although they are on the disk.
    int64_t acknowledge_max = std::numeric_limits<int64_t>::max();
    absl::Duration failing_since = absl::InfiniteDuration();
    int num_failures = 0;  // since then
    absl::Duration retry_at = -absl::InfiniteDuration();
    absl::Duration warned_at = -absl::InfiniteDuration();
    bool set_aside = false;
    absl::Duration looked_at = -absl::InfiniteDuration();
    std::string failure;  // why it fails; "": it works
    std::string mended;   // what was last put back or lost
    // Since when agents report steps beyond the next one that the log expects.
    absl::Duration gap_since = absl::InfiniteDuration();
    std::map<int64_t, absl::Duration> commits_wait_since;  // by step, in awake time
  };
  static int64_t AcknowledgedOf(const Entry& entry);
  void MindTheGap(const LossLog::StepRecord& first, Entry* entry, absl::Duration now);
  void Fail(const std::string& job_id, Entry* entry, const absl::Status& why, absl::Duration now);
  absl::Status Reopen(Entry* entry);
  void TryToOpen(const std::string& job_id, Entry* entry, absl::Duration now);
  void FinishEnded(absl::Duration now);
  static absl::Status PutBack(LossLog* log, Entry* entry);
  void Look(const std::string& job_id, Entry* entry, absl::Duration now);

  JobFiles& files_;
  std::map<std::string, Entry> logs_;   // by job
  std::map<std::string, Entry> ended_;  // of jobs that have ended, with something left to do
  std::set<std::string> failing_;       // jobs whose log fails
  // Jobs whose appended records are to be made durable, in turn, each once. A job that was synced
  // out of turn keeps its place. Records that it gets before its turn are made durable then; if it
  // gets none, its turn is skipped.
  std::deque<std::string> waiting_;
  absl::Duration sync_interval_;
  absl::Duration sync_at_ = -absl::InfiniteDuration();  // before this, SyncInTurn does nothing
};

}  // namespace megascale::driver
