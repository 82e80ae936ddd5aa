#include "controlplane/driver/driver_core.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controlplane/driver/placement.h"
#include "controlplane/driver/preflight_check.h"
#include "controlplane/driver/recovery.h"
#include "runtime/base/check.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using google::protobuf::util::MessageDifferencer;

// True when agents are told the same in both stages.
bool IsHold(pb::Stage stage) {
  return stage == pb::STAGE_FENCE || stage == pb::STAGE_BACKOFF ||
         stage == pb::STAGE_WAIT_FOR_SLOTS;
}

std::string CancelledMessage(const JobRecord& job) {
  if (job.committed_size() == 0) return "cancelled";
  const auto& newest = *job.committed().rbegin();
  return absl::StrCat("cancelled; newest checkpoint: step ", newest.step(), " in ",
                      newest.directory());
}

// One event being applied. Every handler returns false when it refuses the event.
class Transition {
 public:
  Transition(const Event& event, DriverState* state) : event_(event), state_(*state) {}

  bool Run();

 private:
  bool OnSubmitted(const pb::JobSubmitted& submitted);
  bool OnCancel(const pb::CancelRequested& cancel);
  bool OnNodeJoined(const agent::Hello& hello);
  bool OnNodeLost(const pb::NodeLost& lost);
  bool OnPreflightPassed(const pb::PreflightPassed& passed);
  bool OnPreflightRefused(const pb::PreflightRefused& refused);
  bool OnTrainingStarted(const pb::TrainingStarted& started);
  bool OnProgress(const pb::AttemptProgressed& progressed);
  bool OnRankFailed(const pb::RankFailed& failed);
  bool OnRankEnded(const pb::RankEnded& ended);
  bool OnNodeFenced(const pb::NodeFenced& fenced);
  bool OnShardsStored(const pb::ShardsStored& stored);
  bool OnManifestWritten(const pb::ManifestWritten& written);
  bool OnBackoffElapsed(const pb::BackoffElapsed& elapsed);
  bool OnStageTimedOut(const pb::StageTimedOut& timed_out);
  bool OnRetentionEnded(const pb::RetentionEnded& ended);

  // What follows without another event, for every job in the order of submission.
  void Settle();
  void SettlePreflight(JobRecord* job);
  void SettleRun(JobRecord* job);
  void SettleStop(JobRecord* job);
  void SettleFence(JobRecord* job);
  void AfterFailure(JobRecord* job);

  // The job in its present attempt; null when the event is of another one or the job is at its end.
  JobRecord* Current(const std::string& job_id, int64_t attempt);
  void Enter(JobRecord* job, pb::Stage stage);
  void Say(JobRecord* job, control::JobState job_state, const std::string& reason,
           const std::string& message);
  void End(JobRecord* job, control::JobState job_state, const std::string& reason,
           const std::string& message);
  void Complete(JobRecord* job);
  void EndUnfenced(JobRecord* job);
  void Fail(JobRecord* job, const Culprit& culprit);
  void Refuse(JobRecord* job, const PreflightRefusal& refusal);
  void LoseProcesses(const std::string& node_id, const std::string& why);
  void StartAttempt(JobRecord* job, PlacementResult placement);
  void StartRun(JobRecord* job, const agent::RestorePoint& restore);

  const Event& event_;
  DriverState& state_;
};

bool Transition::Run() {
  // Counted first: a stage that this event begins is newer than every version sent before it.
  state_.set_num_events(state_.num_events() + 1);
  const bool accepted = [&] {
    switch (event_.event_case()) {
      case Event::kJobSubmitted:
        return OnSubmitted(event_.job_submitted());
      case Event::kCancelRequested:
        return OnCancel(event_.cancel_requested());
      case Event::kNodeJoined:
        return OnNodeJoined(event_.node_joined().hello());
      case Event::kNodeLost:
        return OnNodeLost(event_.node_lost());
      case Event::kPreflightPassed:
        return OnPreflightPassed(event_.preflight_passed());
      case Event::kPreflightRefused:
        return OnPreflightRefused(event_.preflight_refused());
      case Event::kTrainingStarted:
        return OnTrainingStarted(event_.training_started());
      case Event::kAttemptProgressed:
        return OnProgress(event_.attempt_progressed());
      case Event::kRankFailed:
        return OnRankFailed(event_.rank_failed());
      case Event::kRankEnded:
        return OnRankEnded(event_.rank_ended());
      case Event::kNodeFenced:
        return OnNodeFenced(event_.node_fenced());
      case Event::kShardsStored:
        return OnShardsStored(event_.shards_stored());
      case Event::kManifestWritten:
        return OnManifestWritten(event_.manifest_written());
      case Event::kBackoffElapsed:
        return OnBackoffElapsed(event_.backoff_elapsed());
      case Event::kStageTimedOut:
        return OnStageTimedOut(event_.stage_timed_out());
      case Event::kRetentionEnded:
        return OnRetentionEnded(event_.retention_ended());
      case Event::kDriverStarted:
        return true;
      case Event::EVENT_NOT_SET:
        return false;
    }
    return false;
  }();
  if (accepted) Settle();
  return accepted;
}

JobRecord* Transition::Current(const std::string& job_id, int64_t attempt) {
  JobRecord* job = FindJob(&state_, job_id);
  if (job == nullptr || IsTerminal(*job) || job->attempt() != attempt) return nullptr;
  return job;
}

void Transition::Enter(JobRecord* job, pb::Stage stage) {
  MEGASCALE_CHECK_MSG(!IsTerminal(*job), "a terminal job never changes");
  // Agents that hold already are not told again, so the version that they have applied stays good.
  if (!IsHold(job->stage()) || !IsHold(stage)) job->set_stage_event(state_.num_events());
  job->set_stage(stage);
}

void Transition::Say(JobRecord* job, control::JobState job_state, const std::string& reason,
                     const std::string& message) {
  job->set_state(job_state);
  job->set_reason(reason);
  job->set_message(message);
}

void Transition::End(JobRecord* job, control::JobState job_state, const std::string& reason,
                     const std::string& message) {
  Enter(job, pb::STAGE_ENDED);
  Say(job, job_state, reason, message);
  job->set_ended_unix_nanos(event_.time_unix_nanos());
  job->clear_finalize();
}

void Transition::Complete(JobRecord* job) {
  End(job, control::JOB_STATE_SUCCEEDED, "Completed",
      absl::StrCat(job->submitted().spec().train().steps(), " steps completed"));
}

// --- requests ---------------------------------------------------------------------------------

bool Transition::OnSubmitted(const pb::JobSubmitted& submitted) {
  if (FindJob(state_, submitted.job_id()) != nullptr) return false;
  JobRecord* job = state_.add_jobs();
  *job->mutable_submitted() = submitted;
  job->set_submitted_unix_nanos(event_.time_unix_nanos());
  Enter(job, pb::STAGE_QUEUED);
  Say(job, control::JOB_STATE_PENDING, "WaitingForSlots", "");
  return true;
}

bool Transition::OnCancel(const pb::CancelRequested& cancel) {
  JobRecord* job = FindJob(&state_, cancel.job_id());
  if (job == nullptr || IsTerminal(*job) || job->has_cancel()) return false;
  *job->mutable_cancel() = cancel;
  if (job->stage() == pb::STAGE_QUEUED) {
    End(job, control::JOB_STATE_CANCELLED, "CancelRequested", "cancelled before it started");
    return true;
  }
  Enter(job, job->stage() == pb::STAGE_RUN ? pb::STAGE_STOP : pb::STAGE_FENCE);
  Say(job, control::JOB_STATE_CANCELLING, "CancelRequested",
      job->stage() == pb::STAGE_STOP ? "the ranks stop at the end of a step"
                                     : "waits for its processes to end");
  return true;
}

// --- nodes ------------------------------------------------------------------------------------

bool Transition::OnNodeJoined(const agent::Hello& hello) {
  NodeRecord* node = FindNode(&state_, hello.node_id());
  if (node == nullptr) {
    node = AddNode(&state_, hello.node_id());
  } else if (node->hello().incarnation() != hello.incarnation()) {
    LoseProcesses(hello.node_id(), "its agent was restarted, its processes died with it");
  } else if (node->alive() && MessageDifferencer::Equals(node->hello(), hello)) {
    return false;
  }
  *node->mutable_hello() = hello;
  node->set_alive(true);
  return true;
}

bool Transition::OnNodeLost(const pb::NodeLost& lost) {
  NodeRecord* node = FindNode(&state_, lost.node_id());
  if (node == nullptr || !node->alive() || node->hello().incarnation() != lost.incarnation()) {
    return false;
  }
  node->set_alive(false);
  LoseProcesses(lost.node_id(), lost.why());
  return true;
}

void Transition::LoseProcesses(const std::string& node_id, const std::string& why) {
  for (JobRecord& job : *state_.mutable_jobs()) {
    const std::vector<std::string> nodes = NodesOf(job);
    if (!HoldsSlots(job) || std::find(nodes.begin(), nodes.end(), node_id) == nodes.end()) continue;
    auto* fenced = job.mutable_fenced();
    fenced->erase(std::remove_if(fenced->begin(), fenced->end(),
                                 [&](const auto& entry) { return entry.node_id() == node_id; }),
                  fenced->end());
    for (const auto& placement : job.placements()) {
      if (placement.node_id() != node_id || FindEnded(job, placement.rank()) != nullptr) continue;
      auto* ended = job.add_ended();
      ended->set_rank(placement.rank());
      ended->set_failed(true);
    }
    Culprit culprit;
    culprit.set_node_id(node_id);
    culprit.set_rank(-1);
    culprit.set_failure_class(telemetry::FAILURE_CLASS_UNREACHABLE);
    culprit.set_evidence(why);
    Fail(&job, culprit);
  }
}

// --- the attempt's life -----------------------------------------------------------------------

bool Transition::OnPreflightPassed(const pb::PreflightPassed& passed) {
  JobRecord* job = Current(passed.job_id(), passed.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_PREFLIGHT ||
      HasPreflight(*job, passed.node_id())) {
    return false;
  }
  auto* preflight = job->add_preflights();
  preflight->set_node_id(passed.node_id());
  *preflight->mutable_preflight() = passed.preflight();
  return true;
}

bool Transition::OnPreflightRefused(const pb::PreflightRefused& refused) {
  JobRecord* job = Current(refused.job_id(), refused.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_PREFLIGHT) return false;
  Refuse(job, {refused.node_id(), refused.message()});
  return true;
}

bool Transition::OnTrainingStarted(const pb::TrainingStarted& started) {
  JobRecord* job = Current(started.job_id(), started.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_RUN ||
      job->state() != control::JOB_STATE_STARTING) {
    return false;
  }
  Say(job, control::JOB_STATE_RUNNING, "Training", "");
  return true;
}

bool Transition::OnProgress(const pb::AttemptProgressed& progressed) {
  JobRecord* job = Current(progressed.job_id(), progressed.attempt());
  if (job == nullptr || progressed.step() <= job->best_step()) return false;
  job->set_best_step(progressed.step());
  job->set_progressed(true);
  if (job->started_unix_nanos() == 0) job->set_started_unix_nanos(event_.time_unix_nanos());
  return true;
}

bool Transition::OnRankFailed(const pb::RankFailed& failed) {
  JobRecord* job = Current(failed.job_id(), failed.attempt());
  if (job == nullptr || job->stage() == pb::STAGE_QUEUED || job->stage() == pb::STAGE_BACKOFF ||
      job->stage() == pb::STAGE_WAIT_FOR_SLOTS) {
    return false;
  }
  if (failed.rank() >= 0) {
    if (NodeOfRank(*job, failed.rank()) != failed.node_id()) return false;
    if (FindEnded(*job, failed.rank()) != nullptr) return false;
    auto* ended = job->add_ended();
    ended->set_rank(failed.rank());
    ended->set_failed(true);
  } else {
    if (job->host_failed()) return false;
    job->set_host_failed(true);
  }
  Culprit culprit;
  culprit.set_node_id(failed.node_id());
  culprit.set_rank(failed.rank());
  culprit.set_failure_class(failed.failure().failure_class());
  culprit.set_evidence(failed.failure().message());
  Fail(job, culprit);
  return true;
}

bool Transition::OnRankEnded(const pb::RankEnded& ended) {
  JobRecord* job = Current(ended.job_id(), ended.attempt());
  if (job == nullptr || FindEnded(*job, ended.rank()) != nullptr) return false;
  if (job->stage() != pb::STAGE_RUN && job->stage() != pb::STAGE_STOP) return false;
  auto* record = job->add_ended();
  record->set_rank(ended.rank());
  record->set_step(ended.step());
  record->set_stopped(ended.stopped());
  if (job->stage() == pb::STAGE_RUN && ended.stopped()) {
    record->set_failed(true);
    Culprit culprit;
    culprit.set_node_id(NodeOfRank(*job, ended.rank()));
    culprit.set_rank(ended.rank());
    culprit.set_failure_class(telemetry::FAILURE_CLASS_EXITED);
    culprit.set_evidence(absl::StrCat("stopped at step ", ended.step(), " without being asked"));
    Fail(job, culprit);
  }
  return true;
}

void Transition::Fail(JobRecord* job, const Culprit& found) {
  if (job->has_cancel()) return;
  const bool first = job->stage() == pb::STAGE_PREFLIGHT || job->stage() == pb::STAGE_RUN;
  const bool better = job->stage() == pb::STAGE_FENCE && IsBetterCulprit(found, job->culprit());
  if (!first && !better) return;
  *job->mutable_culprit() = found;
  job->mutable_culprit()->set_attempt(job->attempt());
  if (first) {
    job->clear_fenced();
    Enter(job, pb::STAGE_FENCE);
  }
  Say(job, control::JOB_STATE_RECOVERING, ReasonOf(found), Describe(found));
}

bool Transition::OnNodeFenced(const pb::NodeFenced& fenced) {
  JobRecord* job = Current(fenced.job_id(), fenced.attempt());
  if (job == nullptr || IsFenced(*job, fenced.node_id())) return false;
  if (!IsHold(job->stage()) && job->stage() != pb::STAGE_STOP) return false;
  const std::vector<std::string> live = LiveNodesOf(state_, *job);
  if (std::find(live.begin(), live.end(), fenced.node_id()) == live.end()) return false;
  auto* entry = job->add_fenced();
  entry->set_node_id(fenced.node_id());
  *entry->mutable_snapshots() = fenced.snapshots();
  return true;
}

bool Transition::OnShardsStored(const pb::ShardsStored& stored) {
  JobRecord* job = Current(stored.job_id(), stored.attempt());
  if (job == nullptr) return false;
  if (job->stage() != pb::STAGE_RUN && job->stage() != pb::STAGE_STOP) return false;
  for (const auto& manifest : job->committed()) {
    if (manifest.attempt() == stored.attempt() && manifest.step() == stored.step()) return false;
  }
  const auto& finalize = job->finalize();
  if (std::find(finalize.begin(), finalize.end(), stored.step()) != finalize.end()) return false;
  job->add_finalize(stored.step());
  return true;
}

bool Transition::OnManifestWritten(const pb::ManifestWritten& written) {
  const auto& manifest = written.manifest();
  JobRecord* job = Current(written.job_id(), manifest.attempt());
  if (job == nullptr || !job->has_restore()) return false;
  auto* committed = job->mutable_committed();
  for (const auto& known : *committed) {
    if (known.attempt() == manifest.attempt() && known.step() == manifest.step()) return false;
  }
  *committed->Add() = manifest;
  std::stable_sort(committed->begin(), committed->end(),
                   [](const auto& a, const auto& b) { return a.step() < b.step(); });
  const int keep = std::max(1, job->submitted().spec().checkpoint().keep());
  if (committed->size() > keep) {
    committed->erase(committed->begin(), committed->begin() + (committed->size() - keep));
  }
  auto* finalize = job->mutable_finalize();
  finalize->erase(std::remove(finalize->begin(), finalize->end(), manifest.step()),
                  finalize->end());
  return true;
}

bool Transition::OnBackoffElapsed(const pb::BackoffElapsed& elapsed) {
  JobRecord* job = Current(elapsed.job_id(), elapsed.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_BACKOFF) return false;
  Enter(job, pb::STAGE_WAIT_FOR_SLOTS);
  return true;
}

bool Transition::OnStageTimedOut(const pb::StageTimedOut& timed_out) {
  JobRecord* job = Current(timed_out.job_id(), timed_out.attempt());
  const pb::Stage stage =
      timed_out.stage() == pb::STAGE_UNSPECIFIED ? pb::STAGE_STOP : timed_out.stage();
  if (job == nullptr || job->stage() != stage) return false;
  if (stage == pb::STAGE_STOP) {
    Enter(job, pb::STAGE_FENCE);
    Say(job, control::JOB_STATE_CANCELLING, "CancelRequested",
        "did not stop in time; waits for its processes to be killed");
    return true;
  }
  if (WaitsForFinalCheckpoint(*job)) {
    Fail(job, CheckpointNotStored(*job));
    return true;
  }
  if (stage == pb::STAGE_RUN || AllFenced(state_, *job)) return false;
  EndUnfenced(job);
  return true;
}

// Its processes can write nothing that counts any more, but neither can another attempt begin.
void Transition::EndUnfenced(JobRecord* job) {
  const std::string left =
      absl::StrCat("; ", absl::StrJoin(UnfencedNodesOf(state_, *job), ", "),
                   " could not end its processes in time: look there for processes that hang "
                   "in storage or in a device, and restart the machine if need be");
  if (job->has_cancel()) {
    End(job, control::JOB_STATE_CANCELLED, "CancelRequested",
        absl::StrCat(CancelledMessage(*job), left));
  } else if (HasAllSteps(*job)) {
    Complete(job);
  } else {
    End(job, control::JOB_STATE_FAILED, ReasonOf(job->culprit()),
        absl::StrCat(Describe(job->culprit()), left));
  }
}

bool Transition::OnRetentionEnded(const pb::RetentionEnded& ended) {
  JobRecord* job = Current(ended.job_id(), ended.attempt());
  if (job == nullptr || !WaitsForRetention(state_, *job) ||
      job->committed().rbegin()->step() != ended.step()) {
    return false;
  }
  if (job->stage() == pb::STAGE_STOP) Enter(job, pb::STAGE_FENCE);
  if (job->stage() == pb::STAGE_RUN) Complete(job);
  return true;
}

// --- what follows -----------------------------------------------------------------------------

void Transition::Settle() {
  // A job never overtakes one that was submitted earlier, so that a large one is not starved.
  std::string waits;
  for (JobRecord& job : *state_.mutable_jobs()) {
    if (job.stage() == pb::STAGE_PREFLIGHT) SettlePreflight(&job);
    if (job.stage() == pb::STAGE_RUN) SettleRun(&job);
    if (job.stage() == pb::STAGE_STOP) SettleStop(&job);
    if (job.stage() == pb::STAGE_FENCE) SettleFence(&job);
    const bool queued = job.stage() == pb::STAGE_QUEUED;
    if (!queued && (job.stage() != pb::STAGE_WAIT_FOR_SLOTS || !AllFenced(state_, job))) {
      if (IsHold(job.stage())) waits = JobId(job);
      continue;
    }
    if (queued && !waits.empty()) {
      Say(&job, job.state(), "WaitingInQueue", absl::StrCat("waits behind job ", waits));
      continue;
    }
    PlacementResult placement = PlaceJob(state_, job);
    if (!placement.placements.empty()) {
      StartAttempt(&job, std::move(placement));
      continue;
    }
    Say(&job, job.state(), "WaitingForSlots", placement.message);
    waits = JobId(job);
  }
}

void Transition::StartAttempt(JobRecord* job, PlacementResult placement) {
  const agent::RestorePoint restore = ChooseRestore(*job, placement.placements);
  job->set_attempt(job->attempt() + 1);
  job->set_instruction_set(placement.instruction_set);
  *job->mutable_placements() = {placement.placements.begin(), placement.placements.end()};
  job->clear_ended();
  job->clear_fenced();
  job->clear_finalize();
  job->set_host_failed(false);
  job->set_progressed(false);
  if (job->has_restore()) {
    StartRun(job, restore);
    return;
  }
  job->clear_preflights();
  Enter(job, pb::STAGE_PREFLIGHT);
  Say(job, control::JOB_STATE_STARTING, "Preflight",
      absl::StrCat("checks data and directories on ", absl::StrJoin(NodesOf(*job), ", ")));
}

void Transition::StartRun(JobRecord* job, const agent::RestorePoint& restore) {
  *job->mutable_restore() = restore;
  Enter(job, pb::STAGE_RUN);
  Say(job, control::JOB_STATE_STARTING, "Starting",
      absl::StrCat("attempt ", job->attempt(), " from ", Describe(restore)));
}

void Transition::SettlePreflight(JobRecord* job) {
  if (job->preflights_size() < static_cast<int>(NodesOf(*job).size())) return;
  const PreflightRefusal refusal = JudgePreflights(*job);
  if (!refusal.message.empty()) return Refuse(job, refusal);
  StartRun(job, ChooseRestore(*job, {job->placements().begin(), job->placements().end()}));
}

void Transition::Refuse(JobRecord* job, const PreflightRefusal& refusal) {
  Culprit* culprit = job->mutable_culprit();
  culprit->set_node_id(refusal.node_id);
  culprit->set_rank(-1);
  culprit->set_failure_class(telemetry::FAILURE_CLASS_REFUSED);
  culprit->set_evidence(refusal.message);
  culprit->set_attempt(job->attempt());
  End(job, control::JOB_STATE_FAILED, ReasonOf(*culprit), refusal.message);
}

void Transition::SettleRun(JobRecord* job) {
  if (job->ended_size() < WorldSize(*job)) return;
  // Its host lives until what the last checkpoint made superfluous is deleted.
  if (WaitsForRetention(state_, *job)) {
    Say(job, job->state(), "Retention", "waits for older checkpoints to be deleted");
  } else if (HasAllSteps(*job)) {
    Complete(job);
  } else {
    Say(job, job->state(), "FinalCheckpoint", "waits for the last checkpoint to be stored");
  }
}

void Transition::SettleStop(JobRecord* job) {
  if (!AllGone(*job)) return;
  bool stopped = job->cancel().checkpoint() && !job->host_failed() && !AllFenced(state_, *job);
  int64_t step = 0;
  for (const auto& ended : job->ended()) {
    stopped = stopped && !ended.failed();
    step = std::max(step, ended.step());
  }
  const bool stored = job->committed_size() > 0 && job->committed().rbegin()->step() >= step;
  if (stopped && job->ended_size() == WorldSize(*job) && step > 0 && !stored) {
    Say(job, job->state(), "FinalCheckpoint",
        absl::StrCat("waits for the checkpoint of step ", step, " to be stored"));
    return;
  }
  if (WaitsForRetention(state_, *job)) {
    Say(job, job->state(), "Retention", "waits for older checkpoints to be deleted");
    return;
  }
  Enter(job, pb::STAGE_FENCE);
}

void Transition::SettleFence(JobRecord* job) {
  if (!AllFenced(state_, *job)) return;
  if (!job->has_cancel()) {
    AfterFailure(job);
    return;
  }
  End(job, control::JOB_STATE_CANCELLED, "CancelRequested", CancelledMessage(*job));
}

void Transition::AfterFailure(JobRecord* job) {
  const Culprit& culprit = job->culprit();
  if (HasAllSteps(*job)) return Complete(job);
  if (!IsRetried(culprit.failure_class())) {
    End(job, control::JOB_STATE_FAILED, ReasonOf(culprit), Describe(culprit));
    return;
  }
  StepOverCorrupt(job);
  job->set_attempts_without_progress(job->progressed() ? 0 : job->attempts_without_progress() + 1);
  if (job->attempts_without_progress() >
      job->submitted().spec().fault().max_restarts_without_progress()) {
    End(job, control::JOB_STATE_FAILED, ReasonOf(culprit),
        absl::StrCat("gave up after ", job->attempts_without_progress(),
                     " attempts in a row without progress; the last: ", Describe(culprit)));
    return;
  }
  const absl::Duration backoff = BackoffOf(*job);
  if (backoff == absl::ZeroDuration()) {
    Enter(job, pb::STAGE_WAIT_FOR_SLOTS);
    return;
  }
  Enter(job, pb::STAGE_BACKOFF);
  Say(job, control::JOB_STATE_RECOVERING, ReasonOf(culprit),
      absl::StrCat(Describe(culprit), "; next attempt in ", absl::FormatDuration(backoff)));
}

}  // namespace

bool Apply(const Event& event, DriverState* state) { return Transition(event, state).Run(); }

}  // namespace megascale::driver
