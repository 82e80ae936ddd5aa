#include "controlplane/driver/shell/job_logs.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr absl::Duration kRetry = absl::Seconds(1);
constexpr absl::Duration kRetryAside = absl::Minutes(1);
constexpr int kFailuresMin = 5;  // the driver may have stood still for longer than the patience
constexpr absl::Duration kWarnInterval = absl::Minutes(1);
constexpr absl::Duration kSyncsSavedUp = absl::Seconds(1);

// The records that the cut takes away are not to be put back.
void DropCut(const LossLogCut& cut, std::vector<LossLog::StepRecord>* records) {
  std::erase_if(*records, [&](const LossLog::StepRecord& record) {
    return record.step() > cut.restore_step && record.attempt() < cut.attempt;
  });
}

}  // namespace

// After a failed sync the file may have records that are not on the disk. Cuts that are due come
// before the first append: else the steps that were rolled back would stay, and those that were
// computed instead would count as repeated.
absl::Status JobLogs::Reopen(Entry* entry) {
  ASSIGN_OR_RETURN(std::unique_ptr<LossLog> log, LossLog::Open(entry->directory, &files_));
  if (entry->synced >= 0 && log->last_step() > entry->synced) {
    RETURN_IF_ERROR(log->DropAfter(entry->synced));
  }
  RETURN_IF_ERROR(PutBack(log.get(), entry));
  log->ContinueFrom(entry->synced, entry->position);
  for (const LossLogCut& cut : entry->cuts) {
    DropCut(cut, &entry->kept);
    RETURN_IF_ERROR(log->CutTo(cut.restore_step, cut.attempt));
  }
  entry->cuts.clear();
  entry->acknowledge_max = std::numeric_limits<int64_t>::max();
  // The agents do not have the steps any more that were acknowledged without a log.
  if (entry->set_aside) log->GoOnAt(entry->reported + 1);
  entry->log = std::move(log);
  entry->kept.clear();
  return absl::OkStatus();
}

// The file may be new, or a copy that somebody put there. What a failed Mend wrote into it may not
// be on the disk.
absl::Status JobLogs::PutBack(LossLog* log, Entry* entry) {
  const auto& kept = entry->kept;
  if (!kept.empty() && (entry->displaced || log->last_step() < kept.back().step())) {
    const std::string told = log->DescribeLoss(kept, entry->kept_all);
    // At a second try the file has a part of them, and what was lost is no longer seen.
    if (entry->mended.empty() || absl::StrContains(told, "were lost")) {
      entry->mended = told;
      base::LogWarning(told);
    }
    if (entry->displaced) RETURN_IF_ERROR(log->DropAfter(kept.front().step() - 1));
    RETURN_IF_ERROR(log->PutBack(kept));
  }
  entry->displaced = false;
  return absl::OkStatus();
}

LossLog* JobLogs::Open(const JobRecord& job, absl::Duration now) {
  Entry& entry = logs_[JobId(job)];
  if (entry.log != nullptr) return entry.log.get();
  if (now < entry.retry_at) return nullptr;
  entry.directory = job.submitted().directory();
  TryToOpen(JobId(job), &entry, now);
  return entry.log.get();
}

void JobLogs::TryToOpen(const std::string& job_id, Entry* entry, absl::Duration now) {
  if (const absl::Status opened = Reopen(entry); !opened.ok()) {
    return Fail(job_id, entry, opened, now);
  }
  if (failing_.erase(job_id) > 0) {
    base::LogInfo(absl::StrCat("job ", job_id, ": its loss log can be written again"));
  }
  entry->failing_since = absl::InfiniteDuration();
  entry->num_failures = 0;
  entry->set_aside = false;
  entry->failure.clear();
}

void JobLogs::Fail(const std::string& job_id, Entry* entry, const absl::Status& why,
                   absl::Duration now) {
  if (entry->log != nullptr) {
    entry->synced = entry->log->synced_step();
    entry->position = entry->log->synced_position();
    const RecentSteps& recent = entry->log->recent();
    entry->kept.assign(recent.begin(), recent.end());
    std::erase_if(entry->kept, [&](const auto& record) { return record.step() > entry->synced; });
    entry->kept_all = recent.size() < LossLog::kRecentMax;
    entry->displaced = !entry->log->IsAtItsPath();
  }
  entry->log.reset();
  entry->failing_since = std::min(entry->failing_since, now);
  failing_.insert(job_id);
  ++entry->num_failures;
  const bool set_aside =
      now - entry->failing_since >= kPatience && entry->num_failures >= kFailuresMin;
  const bool is_news = set_aside != std::exchange(entry->set_aside, set_aside);
  entry->retry_at = now + (set_aside ? kRetryAside : kRetry);
  entry->failure = absl::StrCat(
      "its loss log cannot be used: ", why.message(),
      set_aside ? "; the job goes on without it, and its steps are missing there until it works"
                : "; tried again every second, and no checkpoint is committed meanwhile");
  if (!is_news && now < entry->warned_at + kWarnInterval) return;
  entry->warned_at = now;
  base::LogWarning(absl::StrCat("job ", job_id, ": ", entry->failure));
}

std::string JobLogs::WarningOf(const std::string& job_id) const {
  const auto found = logs_.find(job_id);
  if (found == logs_.end()) return "";
  return found->second.failure.empty() ? found->second.mended : found->second.failure;
}

const LossLog* JobLogs::Find(const std::string& job_id) const {
  const auto found = logs_.find(job_id);
  return found == logs_.end() ? nullptr : found->second.log.get();
}

// An agent reports every step that was not acknowledged, so `first` is the oldest that it has of
// those that the log lacks.
void JobLogs::MindTheGap(const LossLog::StepRecord& first, Entry* entry, absl::Duration now) {
  if (!entry->log->HasGapBefore(first.step())) {
    entry->gap_since = absl::InfiniteDuration();
    return;
  }
  entry->gap_since = std::min(entry->gap_since, now);
  if (now - entry->gap_since < kGapPatience) return;
  entry->log->GoOnAt(first.step());
  entry->gap_since = absl::InfiniteDuration();
}

int64_t JobLogs::Append(const JobRecord& job,
                        const google::protobuf::RepeatedPtrField<LossLog::StepRecord>& records,
                        absl::Duration now) {
  LossLog* log = Open(job, now);
  Entry& entry = logs_[JobId(job)];
  const int64_t last_step = job.submitted().spec().train().steps();
  bool is_first = true;
  for (const LossLog::StepRecord& record : records) {
    const bool is_before =
        record.attempt() < job.attempt() && record.step() <= job.restore().step();
    if (record.attempt() != job.attempt() && !is_before) continue;
    if (record.step() < 1 || record.step() > last_step) continue;
    entry.reported = std::max(entry.reported, record.step());
    // A report may repeat steps that the log has.
    if (log == nullptr || record.step() <= log->last_step()) continue;
    if (std::exchange(is_first, false)) MindTheGap(record, &entry, now);
    if (!std::exchange(entry.has_place, true)) waiting_.push_back(JobId(job));
    if (const absl::Status appended = log->Append(record); !appended.ok()) {
      Fail(JobId(job), &entry, appended, now);
      log = nullptr;
    }
  }
  return log == nullptr ? entry.reported : std::max(entry.reported, log->last_step());
}

std::vector<std::string> JobLogs::SyncInTurn(absl::Duration now) {
  std::vector<std::string> synced;
  sync_at_ = std::max(sync_at_, now - kSyncsSavedUp);
  while (!waiting_.empty() && sync_at_ <= now) {
    const std::string job_id = std::move(waiting_.front());
    waiting_.pop_front();
    const auto found = logs_.find(job_id);
    if (found == logs_.end()) continue;
    found->second.has_place = false;
    const LossLog* log = found->second.log.get();
    if (log == nullptr || log->is_synced()) continue;
    Sync(job_id, now);
    sync_at_ += sync_interval_;
    synced.push_back(job_id);
  }
  return synced;
}

void JobLogs::Sync(const std::string& job_id, absl::Duration now) {
  const auto found = logs_.find(job_id);
  if (found == logs_.end() || found->second.log == nullptr) return;
  Entry& entry = found->second;
  if (const absl::Status synced = entry.log->Sync(); !synced.ok()) {
    Fail(job_id, &entry, synced, now);
  } else if (now >= entry.looked_at + kLookInterval) {
    Look(job_id, &entry, now);
  }
}

void JobLogs::Look(const std::string& job_id, Entry* entry, absl::Duration now) {
  entry->looked_at = now;
  const absl::StatusOr<std::string> mended = entry->log->Mend();
  if (!mended.ok()) return Fail(job_id, entry, mended.status(), now);
  if (mended->empty()) return;
  entry->mended = *mended;
  base::LogWarning(absl::StrCat("job ", job_id, ": ", *mended));
}

void JobLogs::Finish(const std::string& job_id, absl::Duration now) {
  Sync(job_id, now);
  const auto found = logs_.find(job_id);
  if (found != logs_.end() && found->second.log != nullptr) Look(job_id, &found->second, now);
}

bool JobLogs::Cut(const JobRecord& job, absl::Duration now) {
  const LossLogCut cut = CutOf(job);
  LossLog* log = Open(job, now);
  Entry& entry = logs_[cut.job_id];
  if (log != nullptr) {
    Look(cut.job_id, &entry, now);
    log = entry.log.get();
  }
  entry.commits_wait_since.clear();  // those of the attempt before
  entry.reported = std::min(entry.reported, cut.restore_step);
  const absl::Status done =
      log == nullptr ? absl::OkStatus() : log->CutTo(cut.restore_step, cut.attempt);
  if (!done.ok()) {
    Fail(cut.job_id, &entry, done, now);
    DropCut(cut, &entry.kept);  // the file may have been cut
    log = nullptr;
  }
  if (log == nullptr) {
    auto& cuts = entry.cuts;
    while (!cuts.empty() && cuts.back().restore_step >= cut.restore_step) cuts.pop_back();
    cuts.push_back(cut);
    // Not acknowledged: the file may lack steps before the cut that agents still have.
    entry.acknowledge_max = std::min(entry.acknowledge_max, cut.restore_step);
    if (!entry.set_aside) return false;
  }
  entry.acknowledge_max = std::numeric_limits<int64_t>::max();
  return true;
}

void JobLogs::Forget(const std::string& job_id) {
  const auto found = logs_.find(job_id);
  if (found == logs_.end()) return;
  Entry& entry = found->second;
  failing_.erase(job_id);
  const bool has_work = !entry.cuts.empty() || !entry.kept.empty();
  if (entry.log == nullptr && has_work && !entry.directory.empty()) {
    entry.synced = -1;  // what the file has of the last steps nobody sends again
    entry.retry_at = -absl::InfiniteDuration();
    ended_[job_id] = std::move(entry);
  }
  logs_.erase(found);
}

std::vector<std::string> JobLogs::RetryFailed(absl::Duration now) {
  FinishEnded(now);
  std::vector<std::string> opened;
  for (const std::string& job_id : std::set<std::string>(failing_)) {
    Entry& entry = logs_[job_id];
    if (now < entry.retry_at) continue;
    TryToOpen(job_id, &entry, now);
    if (entry.log != nullptr) opened.push_back(job_id);
  }
  return opened;
}

// Steps that a rollback took back must not stay in the log for ever, nor may deleted ones be lost.
void JobLogs::FinishEnded(absl::Duration now) {
  for (auto ended = ended_.begin(); ended != ended_.end();) {
    Entry& entry = ended->second;
    const bool is_due = now >= entry.retry_at;
    if (is_due && Reopen(&entry).ok()) {
      ended = ended_.erase(ended);
      continue;
    }
    if (is_due) {
      entry.log.reset();
      entry.retry_at = now + kRetryAside;
    }
    ++ended;
  }
}

bool JobLogs::HoldsCommit(const std::string& job_id, int64_t step, absl::Duration patience,
                          absl::Duration awake) {
  const auto found = logs_.find(job_id);
  if (found == logs_.end()) return false;
  Entry& entry = found->second;
  if (entry.log == nullptr) return !entry.set_aside;
  auto& waits = entry.commits_wait_since;
  waits.erase(waits.begin(), waits.upper_bound(entry.log->synced_step()));
  if (entry.log->synced_step() >= step) return false;
  return awake - waits.emplace(step, awake).first->second < patience;
}

int64_t JobLogs::AcknowledgedOf(const Entry& entry) {
  const int64_t step = entry.log != nullptr ? entry.log->synced_step()
                       : entry.set_aside    ? entry.reported
                                            : std::max<int64_t>(0, entry.synced);
  return std::min(step, entry.acknowledge_max);
}

std::optional<int64_t> JobLogs::Acknowledged(const std::string& job_id) const {
  const auto found = logs_.find(job_id);
  if (found == logs_.end()) return std::nullopt;
  return AcknowledgedOf(found->second);
}

void JobLogs::ForEachAcknowledged(
    const std::function<void(const std::string&, int64_t)>& take) const {
  for (const auto& [job_id, entry] : logs_) take(job_id, AcknowledgedOf(entry));
}

}  // namespace megascale::driver
