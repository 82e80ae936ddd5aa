#include "tests/sim/checkers/commit_checkers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace megascale::sim {
namespace {

// True when the driver believes that this incarnation of the node lives.
bool IsBelievedAlive(const DriverState& state, const ProcessName& process) {
  const driver::NodeRecord* node = driver::FindNode(state, process.node_id);
  return node != nullptr && node->alive() && node->hello().incarnation() == process.incarnation;
}

bool HasManifest(const JobRecord* job, const agent::StoredManifest& manifest) {
  if (job == nullptr) return false;
  for (const auto& known : job->committed()) {
    if (known.attempt() == manifest.attempt() && known.step() == manifest.step()) return true;
  }
  return false;
}

}  // namespace

// --- NeverTwoAttemptsCommit -------------------------------------------------------------------

void CommitChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = driver::FindJob(before, driver::JobId(job));
    for (const auto& manifest : job.committed()) {
      // Checkpoints that were set aside count as committed again once the job has ended.
      const bool is_new =
          seen_[driver::JobId(job)].emplace(manifest.attempt(), manifest.step()).second;
      if (is_new && !HasManifest(old, manifest)) CheckNew(job, manifest);
    }
  }
}

void CommitChecker::CheckNew(const JobRecord& job, const agent::StoredManifest& manifest) {
  constexpr char kName[] = "NeverTwoAttemptsCommit";
  const std::string& job_id = driver::JobId(job);
  const std::string what = absl::StrCat("job ", job_id, ": commits ", manifest.directory());
  int64_t& newest = newest_attempt_[job_id];
  if (manifest.attempt() < newest || manifest.attempt() > job.attempt()) {
    world_.Violate(kName, absl::StrCat(what, " of attempt ", manifest.attempt(), " after attempt ",
                                       newest, " had committed"));
  }
  newest = manifest.attempt();
  const auto* directory = storage_.Find(manifest.directory());
  if (directory == nullptr || !directory->complete) {
    return world_.Violate(kName, absl::StrCat(what, ", which is not on storage"));
  }
  for (const auto& [rank, content] : directory->shards) {
    if (content == std::make_pair(manifest.attempt(), manifest.step())) continue;
    world_.Violate(kName, absl::StrCat(what, " as of attempt ", manifest.attempt(), " step ",
                                       manifest.step(), ", but rank ", rank, " of attempt ",
                                       content.first, " wrote it at step ", content.second));
  }
}

// --- CommittedIsKept --------------------------------------------------------------------------

void KeptChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    auto& present = present_[driver::JobId(job)];
    present.clear();
    for (const auto& manifest : job.committed()) {
      committed_[driver::JobId(job)].insert({manifest.step(), manifest.attempt()});
      present.insert({manifest.step(), manifest.attempt()});
    }
  }
}

void KeptChecker::OnCheckpointDeleted(const std::string& job_id, const agent::CheckpointId& id) {
  if (present_[job_id].count({id.step(), id.attempt()}) > 0) {
    return world_.Violate("CommittedIsKept",
                          absl::StrCat("job ", job_id, ": the checkpoint of step ", id.step(),
                                       ", attempt ", id.attempt(), " was deleted, and counts"));
  }
  const auto& committed = committed_[job_id];
  if (committed.count({id.step(), id.attempt()}) == 0) return;
  if (committed.upper_bound({id.step(), id.attempt()}) != committed.end()) return;
  world_.Violate("CommittedIsKept",
                 absl::StrCat("job ", job_id, ": the checkpoint of step ", id.step(),
                              " was deleted, and no newer one was committed"));
}

// --- OneAttemptAtATime ------------------------------------------------------------------------

void FenceChecker::OnState(const DriverState& before, const DriverState& after) {
  alive_.clear();
  for (const auto& node : after.nodes()) {
    // The driver has given up what cannot be ended on a quarantined machine.
    if (node.alive() && !node.has_quarantine()) alive_.insert(node.hello().incarnation());
  }
  for (const auto& [key, process] : processes_) NoteGivenUp(process);
  bool begun = false;
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = driver::FindJob(before, driver::JobId(job));
    if (old == nullptr || old->attempt() == job.attempt()) continue;
    begun = true;
    for (const std::string& incarnation : alive_) {
      begun_[{incarnation, driver::JobId(job)}] = job.attempt();
    }
  }
  if (!begun) return;
  for (const auto& [key, process] : processes_) Check(process);
}

void FenceChecker::NoteGivenUp(const ProcessName& process) {
  if (alive_.count(process.incarnation) > 0) return;
  int64_t& given_up = given_up_[{process.incarnation, process.job_id}];
  given_up = std::max(given_up, process.attempt);
}

void FenceChecker::OnProcessStarted(const ProcessName& process) {
  processes_[{process.incarnation, process.process_id}] = process;
  NoteGivenUp(process);
  Check(process);
}

void FenceChecker::OnProcessEnded(const ProcessName& process) {
  processes_.erase({process.incarnation, process.process_id});
}

void FenceChecker::Check(const ProcessName& process) {
  const auto begun = begun_.find({process.incarnation, process.job_id});
  if (begun == begun_.end() || process.attempt >= begun->second) return;
  const auto given_up = given_up_.find({process.incarnation, process.job_id});
  if (given_up != given_up_.end() && process.attempt <= given_up->second) return;
  world_.Violate(
      "OneAttemptAtATime",
      absl::StrCat("job ", process.job_id, ": rank ", process.rank, " of attempt ", process.attempt,
                   " runs on ", process.node_id, " while attempt ", begun->second, " was begun"));
}

// --- RestorePointIsThere ----------------------------------------------------------------------

void RestoreChecker::OnRestoreFailed(const ProcessName& process, const absl::Status& why) {
  const JobRecord* job = driver::FindJob(durable_, process.job_id);
  // An attempt that was given up may fail to read its restore point.
  if (job == nullptr || job->attempt() != process.attempt ||
      job->stage() != driver::v1::STAGE_RUN || !IsBelievedAlive(durable_, process)) {
    return;
  }
  world_.Violate("RestorePointIsThere",
                 absl::StrCat("job ", process.job_id, " attempt ", process.attempt, " rank ",
                              process.rank, ": ", why.message()));
}

// --- OneEpochAtATime --------------------------------------------------------------------------

void EpochChecker::OnState(const DriverState& before, const DriverState& after) {
  if (after.epoch() == epoch_) return NoteLost(before, after);
  epoch_ = after.epoch();
  given_up_.clear();
  num_of_older_ = static_cast<int64_t>(processes_.size());
}

// A machine that is cut off hears of no epoch. Its processes may go on once it was given up, and so
// may those that cannot be ended on a machine that is quarantined for it.
void EpochChecker::NoteLost(const DriverState& before, const DriverState& after) {
  for (const auto& node : after.nodes()) {
    if (node.has_quarantine()) given_up_.insert(node.hello().incarnation());
  }
  for (const auto& node : before.nodes()) {
    if (!node.alive()) continue;
    const auto* now = driver::FindNode(after, node.hello().node_id());
    if (now == nullptr || !now->alive()) given_up_.insert(node.hello().incarnation());
  }
}

void EpochChecker::OnProcessStarted(const ProcessName& process) {
  processes_[{process.incarnation, process.process_id}] = {process, epoch_, false};
  if (process.rank < 0 || num_of_older_ == 0) return;
  for (const auto& [key, other] : processes_) {
    if (other.name.job_id != process.job_id || other.epoch == epoch_) continue;
    if (given_up_.count(other.name.incarnation) > 0) continue;
    world_.Violate("OneEpochAtATime",
                   absl::StrCat("job ", process.job_id, ": rank ", process.rank, " starts on ",
                                process.node_id, " while rank ", other.name.rank,
                                " of an older epoch runs on ", other.name.node_id));
  }
}

void EpochChecker::OnProcessEnded(const ProcessName& process) {
  processes_.erase({process.incarnation, process.process_id});
}

void EpochChecker::OnProcessKilled(const ProcessName& process) {
  processes_.at({process.incarnation, process.process_id}).killed = true;
}

void EpochChecker::OnEnd(const DriverState& durable) {
  for (const auto& [key, process] : processes_) {
    if (process.epoch == epoch_ || process.killed) continue;
    world_.Violate("OneEpochAtATime",
                   absl::StrCat("job ", process.name.job_id, ": rank ", process.name.rank,
                                " of an older epoch was never ended"));
  }
}

// --- PreflightComesFirst ----------------------------------------------------------------------

void PreflightChecker::OnPreflightPassed(const ProcessName& process) {
  passed_.insert({process.incarnation, process.job_id});
}

void PreflightChecker::OnProcessStarted(const ProcessName& process) {
  if (process.rank < 0 || passed_.count({process.incarnation, process.job_id}) > 0) return;
  world_.Violate(
      "PreflightComesFirst",
      absl::StrCat("job ", process.job_id, ": rank ", process.rank, " of attempt ", process.attempt,
                   " starts on ", process.node_id, ", whose agent has not passed its preflight"));
}

}  // namespace megascale::sim
