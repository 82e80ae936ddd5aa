#include "controlplane/agent/core/job_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/exit_class.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/job/data_digest.h"
#include "runtime/job/job_spec.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kHostBackoffFirst = absl::Milliseconds(200);
constexpr absl::Duration kHostBackoffMax = absl::Seconds(5);

absl::Duration HostBackoff(int failures) {
  return std::min(kHostBackoffFirst * (1 << std::clamp(failures - 1, 0, 10)), kHostBackoffMax);
}

v1::RankFailure Failure(telemetry::v1::FailureClass failure_class, std::string message) {
  v1::RankFailure failure;
  failure.set_failure_class(failure_class);
  failure.set_message(std::move(message));
  return failure;
}

v1::RankFailure StartFailure(const absl::Status& why, absl::string_view what) {
  const auto of_memory = telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY;
  return Failure(base::IsOutOfMemory(why) ? of_memory : telemetry::v1::FAILURE_CLASS_EXITED,
                 absl::StrCat(what, ": ", why.message()));
}

// Expands the runs of ranks in a message to one placement for each rank.
void ExpandPlacements(v1::DesiredJob* job) {
  v1::DesiredJob runs;
  runs.mutable_placements()->Swap(job->mutable_placements());
  for (const v1::Placement& run : runs.placements()) {
    for (int i = 0; i < std::max(1, run.num_ranks()); ++i) {
      v1::Placement* placement = job->add_placements();
      placement->set_rank(run.rank() + i);
      placement->set_node_id(run.node_id());
    }
  }
}

// Fills in the fields that DesiredJob.as_before leaves out.
void TakeFromBefore(v1::DesiredJob* before, v1::DesiredJob* job) {
  job->clear_as_before();
  job->mutable_spec()->Swap(before->mutable_spec());
  job->mutable_placements()->Swap(before->mutable_placements());
  job->mutable_secret()->swap(*before->mutable_secret());
  job->set_binds_address(before->binds_address());
  job->set_evaluates(before->evaluates());
  job->mutable_checkpoint_directory()->swap(*before->mutable_checkpoint_directory());
  job->mutable_from_checkpoint()->swap(*before->mutable_from_checkpoint());
  job->mutable_allow_changed()->Swap(before->mutable_allow_changed());
  if (before->has_owner()) job->mutable_owner()->Swap(before->mutable_owner());
}

}  // namespace

// --- desired state --------------------------------------------------------------------------

std::string JobCore::UnknownIn(const v1::DesiredJob& desired) {
  if (!v1::DesiredJob::Phase_IsValid(desired.phase()) ||
      desired.phase() == v1::DesiredJob::PHASE_UNSPECIFIED) {
    return absl::StrCat("phase ", desired.phase());
  }
  if (!v1::RestorePoint::Source_IsValid(desired.restore().source())) {
    return absl::StrCat("restore point ", desired.restore().source());
  }
  return "";
}

void JobCore::SetDesired(const v1::DesiredJob& desired, absl::Duration now) {
  const std::string unknown = UnknownIn(desired);
  if (abandoned_) {
    if (unknown.empty()) next_ = desired;
    return;
  }
  wanted_ = true;
  if (desired.attempt() < std::max(attempt_, desired_.attempt())) return;
  const bool same_attempt = desired.attempt() == desired_.attempt();
  if (desired.as_before() && !same_attempt) return;  // it is told in full once it was reported
  unknown_ = unknown;
  if (!unknown.empty() && !same_attempt) return;
  v1::DesiredJob before = std::exchange(desired_, desired);
  if (!unknown.empty()) {
    desired_.set_phase(before.phase());
    *desired_.mutable_restore() = before.restore();
  }
  if (InPhase(v1::DesiredJob::PHASE_RETAIN) && before.phase() != desired_.phase()) {
    ForgetHost();  // another process, with another task
  }
  const bool stops = InPhase(v1::DesiredJob::PHASE_STOP);
  if (!stops || !same_attempt) stop_since_.reset();
  if (desired.as_before()) {
    TakeFromBefore(&before, &desired_);
  } else {
    ExpandPlacements(&desired_);
  }
  if (stops && !stop_since_.has_value()) stop_since_ = now;
  steps_.erase(steps_.begin(), steps_.upper_bound(desired_.acked_step()));
  DropCommitted();
}

// Drops shards and manifests that need no more reports: those that are committed, and those older
// than the newest commit, which can no longer be committed.
void JobCore::DropCommitted() {
  int64_t newest = -1;
  std::set<AttemptStep> committed;
  for (const v1::CheckpointId& id : desired_.committed()) {
    newest = std::max(newest, id.step());
    committed.insert({id.attempt(), id.step()});
  }
  const auto over = [&](int64_t attempt, int64_t step) {
    return step < newest || committed.count({attempt, step}) > 0;
  };
  std::erase_if(shards_, [&](const auto& key) { return over(std::get<0>(key), std::get<1>(key)); });
  std::erase_if(manifests_,
                [&](const auto& item) { return over(item.first.first, item.first.second); });
}

std::vector<int> JobCore::LocalRanks() const {
  std::vector<int> ranks;
  for (const v1::Placement& placement : desired_.placements()) {
    if (placement.node_id() == node_id_) ranks.push_back(placement.rank());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

absl::Duration JobCore::heartbeat_interval() const {
  return job::ToDuration(desired_.spec().fault().heartbeat_interval());
}

// --- observations ---------------------------------------------------------------------------

void JobCore::OnPrepareFailed(const absl::Status& why, absl::Duration now) {
  now_ = now;
  const v1::RankFailure failure = StartFailure(why, "shared memory of the attempt");
  for (const int rank : LocalRanks()) FailRank(rank, failure);
  FailHost(failure);
}

// A store that is away may be back for the next attempt; after a refusal a person must act.
void JobCore::OnStoreChecked(int64_t attempt, const absl::Status& outcome, absl::Duration now) {
  now_ = now;
  if (attempt != attempt_ || store_checked_ || host_failure_.has_value()) return;
  if (outcome.ok()) {
    store_checked_ = true;
  } else if (absl::IsFailedPrecondition(outcome)) {
    store_checked_ = true;
    preflight_.emplace().set_state(v1::Preflight::STATE_REFUSED);
    preflight_->set_message(std::string(outcome.message()));
  } else {
    FailHost(Failure(telemetry::v1::FAILURE_CLASS_RENDEZVOUS, std::string(outcome.message())));
  }
}

void JobCore::OnStarted(int64_t process_id, absl::StatusOr<int> pid, absl::Duration now) {
  now_ = now;
  Process& process = processes_.at(process_id);
  if (pid.ok()) {
    process.pid = *pid;
    return;
  }
  const v1::RankFailure failure = StartFailure(pid.status(), "the process could not be started");
  const Process ended = process;
  processes_.erase(process_id);
  if (ended.rank == kHostRank) {
    EndHost(ended, failure, now);
  } else {
    FailRank(ended.rank, failure);
  }
}

void JobCore::OnEnded(int64_t process_id, const ProcessEnd& end, absl::Duration now) {
  now_ = now;
  const Process process = processes_.at(process_id);
  processes_.erase(process_id);
  if (process.rank != kHostRank) {
    EndRank(process, end);
  } else if (!process.killed || !end.killed) {
    EndHost(process, ClassifyEnd(end, process.reported), now);
  }
}

void JobCore::EndRank(const Process& process, const ProcessEnd& end) {
  // A process that ended before the kill reached it has failed, and may be the cause of its peers'
  // failures.
  const bool by_kill = process.killed && end.killed && !process.reported.has_value();
  if (process.finished.has_value() && end.status == 0) {
    outcomes_[process.rank] = {process.finished->stopped() ? v1::ActualRank::STATE_STOPPED
                                                           : v1::ActualRank::STATE_FINISHED,
                               process.finished->step(),
                               {},
                               {}};
  } else if (by_kill && process.overdue) {
    FailRank(process.rank,
             Failure(telemetry::v1::FAILURE_CLASS_EXITED,
                     absl::StrCat("did not stop within ",
                                  absl::FormatDuration(job::ToDuration(desired_.stop_grace())),
                                  " and was killed")));
  } else if (!by_kill) {
    FailRank(process.rank, ClassifyEnd(end, process.reported));
  }
}

void JobCore::EndHost(const Process& process, v1::RankFailure failure, absl::Duration now) {
  const bool preflight_done =
      preflight_.has_value() && preflight_->state() != v1::Preflight::STATE_RUNNING;
  if (process.preflight_only && preflight_done) return;
  ++host_failures_;
  // A host says that storage failed only after it has waited for it.
  if (failure.failure_class() == telemetry::v1::FAILURE_CLASS_REFUSED ||
      failure.failure_class() == telemetry::v1::FAILURE_CLASS_STORAGE ||
      host_failures_ > kHostRestartsMax) {
    FailHost(std::move(failure));
    return;
  }
  host_start_after_ = now + HostBackoff(host_failures_);
}

void JobCore::FailRank(int rank, v1::RankFailure failure) {
  outcomes_[rank] = {v1::ActualRank::STATE_FAILED, 0, std::move(failure), now_};
}

void JobCore::FailHost(v1::RankFailure failure) {
  host_failure_ = std::move(failure);
  host_failed_at_ = now_;
}

// Local ranks report equal records; the first record is kept.
bool JobCore::OnStep(const telemetry::v1::StepRecord& record, Process* process) {
  const bool is_first = !std::exchange(process->stepped, true);  // now the rank trains
  if (desired_.step_duty() == v1::STEP_DUTY_NONE || record.step() <= desired_.acked_step()) {
    return is_first;
  }
  const bool is_new = steps_.emplace(record.step(), record).second;
  return is_first || (is_new && ReportsSteps());
}

bool JobCore::OnWorkerMessage(int64_t process_id, const link::v1::FromWorker& message) {
  Process& process = processes_.at(process_id);
  switch (message.message_case()) {
    case link::v1::FromWorker::kStep:
      return OnStep(message.step(), &process);
    case link::v1::FromWorker::kFailure:
      process.reported = message.failure();
      break;
    case link::v1::FromWorker::kFinished:
      process.finished = message.finished();
      break;
    case link::v1::FromWorker::kWarning:
      warnings_.insert(message.warning());
      break;
    case link::v1::FromWorker::kSealed:  // the region itself says what is sealed: OnSnapshots
    case link::v1::FromWorker::kStore:   // the shell forwards it
    case link::v1::FromWorker::MESSAGE_NOT_SET:
      break;
  }
  return true;
}

void JobCore::OnHostMessage(int64_t process_id, const link::v1::FromHost& message) {
  Process& process = processes_.at(process_id);
  switch (message.message_case()) {
    case link::v1::FromHost::kPreflight:
      if (preflight_.has_value() && preflight_->state() == v1::Preflight::STATE_REFUSED) break;
      preflight_ = message.preflight();
      if (preflight_->has_data()) {
        files_ = preflight_->data().file_sha256();
        *preflight_->mutable_data() = job::DigestOf(preflight_->data());
      }
      if (preflight_->state() == v1::Preflight::STATE_PASSED) storage_error_.clear();
      break;
    case link::v1::FromHost::kShard:
      OnShard(message.shard());
      break;
    case link::v1::FromHost::kManifest:
      manifests_[{message.manifest().attempt(), message.manifest().step()}] = message.manifest();
      storage_error_.clear();
      host_failures_ = 0;
      DropCommitted();
      break;
    case link::v1::FromHost::kFailure:
      process.reported = message.failure();
      break;
    case link::v1::FromHost::kStorageError:
      storage_error_ = message.storage_error().message();
      break;
    case link::v1::FromHost::kRetained:
      retained_ = message.retained().newest();
      break;
    case link::v1::FromHost::kFetchDataFiles:  // the shell answers it
    case link::v1::FromHost::MESSAGE_NOT_SET:
      break;
  }
}

void JobCore::OnShard(const link::v1::ShardPersisted& shard) {
  if (shard.attempt() != attempt_) return;
  shards_.insert({shard.attempt(), shard.step(), shard.rank()});
  DropCommitted();
  storage_error_.clear();
  host_failures_ = 0;
  for (checkpoint::SealedSnapshot& held : held_) {
    if (held.rank != shard.rank() || held.attempt != shard.attempt() || held.step != shard.step() ||
        held.buffer != shard.buffer()) {
      continue;
    }
    held.persisted = true;
    outbox_.push_back(MarkPersisted{desired_.job_id(), held});
  }
}

void JobCore::OnHostProgress(int64_t process_id) {
  MEGASCALE_CHECK(processes_.at(process_id).rank == kHostRank);
  host_failures_ = 0;
}

// --- reconciliation -------------------------------------------------------------------------

void JobCore::Reconcile(absl::Duration now, int64_t* last_process_id,
                        std::vector<Action>* actions) {
  now_ = now;
  for (Action& action : outbox_) actions->push_back(std::move(action));
  outbox_.clear();
  if (!wanted_ || abandoned_ || InPhase(v1::DesiredJob::PHASE_HOLD)) return KillAll(actions);
  if (desired_.attempt() != attempt_) {
    KillAll(actions);
    if (!processes_.empty()) return;  // the new attempt waits until they are reaped
    Adopt();
  }
  switch (desired_.phase()) {
    case v1::DesiredJob::PHASE_PREFLIGHT:
      return ReconcilePreflight(now, last_process_id, actions);
    case v1::DesiredJob::PHASE_RUN:
      return ReconcileRun(now, last_process_id, actions);
    case v1::DesiredJob::PHASE_STOP:
      return ReconcileStop(now, last_process_id, actions);
    case v1::DesiredJob::PHASE_RETAIN:
      return ReconcileRetain(now, last_process_id, actions);
    default:
      return;
  }
}

void JobCore::Adopt() {
  MEGASCALE_CHECK(processes_.empty());
  attempt_ = desired_.attempt();
  prepared_ = launched_ = false;
  outcomes_.clear();
  preflight_.reset();
  files_.Clear();
  store_check_sent_ = store_checked_ = false;
  ForgetHost();
  warnings_.clear();
  // The driver has fenced the older attempts: their uncommitted checkpoints will never be
  // committed, and the steps after the restore point are taken again.
  std::erase_if(shards_, [&](const auto& shard) { return std::get<0>(shard) < attempt_; });
  std::erase_if(manifests_, [&](const auto& manifest) { return manifest.first.first < attempt_; });
  steps_.erase(steps_.upper_bound(desired_.restore().step()), steps_.end());
}

void JobCore::ForgetHost() {
  host_starts_ = host_failures_ = 0;
  host_start_after_ = -absl::InfiniteDuration();
  host_failure_.reset();
  storage_error_.clear();
  retained_.reset();
}

void JobCore::ReconcilePreflight(absl::Duration now, int64_t* last_process_id,
                                 std::vector<Action>* actions) {
  if (preflight_.has_value() && preflight_->state() != v1::Preflight::STATE_RUNNING) {
    return KillAll(actions);
  }
  if (!preflight_.has_value()) preflight_.emplace().set_state(v1::Preflight::STATE_RUNNING);
  if (!desired_.spec().store().empty() && !store_check_sent_) {
    store_check_sent_ = true;
    actions->push_back(CheckStore{&desired_});
  }
  StartHost(now, last_process_id, actions);
}

void JobCore::ReconcileRun(absl::Duration now, int64_t* last_process_id,
                           std::vector<Action>* actions) {
  bool preflight_runs = false;
  for (auto& [id, process] : processes_) {
    if (!process.preflight_only) continue;
    Kill(&process, actions);
    preflight_runs = true;
  }
  if (preflight_runs || LocalRanks().empty()) return;
  if (!prepared_) {
    prepared_ = true;
    actions->push_back(PrepareMemory{&desired_});
    return;  // the outcome is known before processes are started on it
  }
  StartHost(now, last_process_id, actions);
  launched_ = true;
  for (const int rank : LocalRanks()) {
    if (FindRank(rank) == nullptr && outcomes_.count(rank) == 0) {
      Start(rank, last_process_id, actions);
    }
  }
  TellHost(actions);
}

void JobCore::ReconcileStop(absl::Duration now, int64_t* last_process_id,
                            std::vector<Action>* actions) {
  if (!launched_) {
    KillAll(actions);
    for (const int rank : LocalRanks()) {
      outcomes_.emplace(rank,
                        Outcome{v1::ActualRank::STATE_STOPPED, desired_.restore().step(), {}, {}});
    }
    return;
  }
  StartHost(now, last_process_id, actions);
  for (auto& [id, process] : processes_) {
    if (process.rank == kHostRank) continue;
    if (now >= StopDeadline()) {
      process.overdue = process.overdue || !process.killed;
      Kill(&process, actions);
    } else if (!process.stop_sent) {
      process.stop_sent = true;
      SendToWorker send{id, {}};
      send.message.mutable_stop()->set_checkpoint(desired_.stop_with_checkpoint());
      actions->push_back(std::move(send));
    }
  }
  TellHost(actions);
}

void JobCore::ReconcileRetain(absl::Duration now, int64_t* last_process_id,
                              std::vector<Action>* actions) {
  const bool is_other = std::any_of(processes_.begin(), processes_.end(),
                                    [](const auto& item) { return !item.second.retain_only; });
  if (is_other || !desired_.delete_checkpoints()) return KillAll(actions);
  StartHost(now, last_process_id, actions);
  if (Process* host = HostProcess(); host != nullptr && !host->killed) {
    TellRetention(host, actions);
  }
}

void JobCore::StartHost(absl::Duration now, int64_t* last_process_id,
                        std::vector<Action>* actions) {
  if (HostProcess() != nullptr || host_failure_.has_value() || now < host_start_after_) return;
  ++host_starts_;
  Start(kHostRank, last_process_id, actions);
}

void JobCore::Start(int rank, int64_t* last_process_id, std::vector<Action>* actions) {
  Process process;
  process.id = ++*last_process_id;
  process.rank = rank;
  process.preflight_only = InPhase(v1::DesiredJob::PHASE_PREFLIGHT);
  process.retain_only = InPhase(v1::DesiredJob::PHASE_RETAIN);
  processes_[process.id] = process;
  actions->push_back(StartProcess{process.id, rank, process.preflight_only, &desired_});
}

// Sends the host process every request that it has not received; a restarted one receives all
// again.
void JobCore::TellHost(std::vector<Action>* actions) {
  Process* host = HostProcess();
  if (host == nullptr || host->killed) return;
  for (const checkpoint::SealedSnapshot& held : held_) {
    if (held.persisted || held.attempt != attempt_) continue;
    if (!host->persist_sent.insert({held.rank, held.step, held.buffer}).second) continue;
    SendToHost send{host->id, {}};
    link::v1::Persist* persist = send.message.mutable_persist();
    persist->set_rank(held.rank);
    persist->set_step(held.step);
    persist->set_buffer(held.buffer);
    actions->push_back(std::move(send));
  }
  for (const v1::CheckpointId& id : desired_.finalize()) {
    const AttemptStep key = {id.attempt(), id.step()};
    if (manifests_.count(key) > 0 || !host->finalize_sent.insert(key).second) continue;
    SendToHost send{host->id, {}};
    *send.message.mutable_finalize() = id;
    actions->push_back(std::move(send));
  }
  TellRetention(host, actions);
}

void JobCore::TellRetention(Process* host, std::vector<Action>* actions) {
  if (!desired_.delete_checkpoints() || desired_.committed().empty()) return;
  SendToHost send{host->id, {}};
  *send.message.mutable_retain()->mutable_committed() = desired_.committed();
  send.message.mutable_retain()->set_attempt(attempt_);
  std::string told;
  for (const v1::CheckpointId& id : desired_.committed()) {
    absl::StrAppend(&told, id.attempt(), "/", id.step(), " ");
  }
  if (told == host->retain_sent) return;
  host->retain_sent = told;
  actions->push_back(std::move(send));
}

void JobCore::KillAll(std::vector<Action>* actions) {
  for (auto& [id, process] : processes_) Kill(&process, actions);
}

void JobCore::Kill(Process* process, std::vector<Action>* actions) {
  if (process->killed) return;
  process->killed = true;
  actions->push_back(KillProcess{process->id});
}

absl::Duration JobCore::StopDeadline() const {
  if (!InPhase(v1::DesiredJob::PHASE_STOP) || !stop_since_.has_value()) {
    return absl::InfiniteDuration();
  }
  return *stop_since_ + job::ToDuration(desired_.stop_grace());
}

// True in the cases in which Reconcile reaches StartHost.
bool JobCore::WantsHost() const {
  if (!wanted_ || abandoned_ || desired_.attempt() != attempt_ || host_failure_.has_value()) {
    return false;
  }
  switch (desired_.phase()) {
    case v1::DesiredJob::PHASE_PREFLIGHT:
      return !preflight_.has_value() || preflight_->state() == v1::Preflight::STATE_RUNNING;
    case v1::DesiredJob::PHASE_RUN:
      return !LocalRanks().empty();
    case v1::DesiredJob::PHASE_STOP:
      return launched_;
    case v1::DesiredJob::PHASE_RETAIN:
      return desired_.delete_checkpoints();
    default:
      return false;
  }
}

absl::Duration JobCore::NextWake() const {
  absl::Duration wake = absl::InfiniteDuration();
  for (const auto& [id, process] : processes_) {
    if (process.rank != kHostRank && !process.killed) wake = std::min(wake, StopDeadline());
  }
  // Waking up for a host that will not be started would repeat for ever.
  if (host_failures_ > 0 && HostIsDue()) wake = std::min(wake, host_start_after_);
  return wake;
}

JobCore::Process* JobCore::HostProcess() {
  for (auto& [id, process] : processes_) {
    if (process.rank == kHostRank) return &process;
  }
  return nullptr;
}

bool JobCore::HostIsDue() const {
  const bool has_host = std::any_of(processes_.begin(), processes_.end(),
                                    [](const auto& item) { return item.second.rank == kHostRank; });
  return !has_host && WantsHost();
}

const JobCore::Process* JobCore::FindRank(int rank) const {
  for (const auto& [id, process] : processes_) {
    if (process.rank == rank) return &process;
  }
  return nullptr;
}

}  // namespace megascale::agent
