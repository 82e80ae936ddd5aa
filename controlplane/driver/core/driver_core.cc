#include "controlplane/driver/core/driver_core.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/account/time_account.h"
#include "controlplane/driver/core/transition.h"
#include "controlplane/driver/exchanges/failed_links.h"
#include "runtime/base/check.h"
#include "runtime/base/text/shortlist.h"

namespace megascale::driver {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

bool Transition::Run() {
  // Counted first, so that a stage that this event begins is newer than every version sent before.
  state_.set_num_events(state_.num_events() + 1);
  state_.set_newest_unix_nanos(std::max(state_.newest_unix_nanos(), event_.time_unix_nanos()));
  state_.set_clock_ahead_seconds(event_.clock_ahead_seconds());
  const bool accepted = [&] {
    switch (event_.event_case()) {
      case Event::kJobSubmitted:
        return OnSubmitted(event_.job_submitted());
      case Event::kCancelRequested:
        return OnCancel(event_.cancel_requested());
      case Event::kJobsForgotten:
        return OnJobsForgotten(event_.jobs_forgotten());
      case Event::kPreflightPassed:
        return OnPreflightPassed(event_.preflight_passed());
      case Event::kPreflightRefused:
        return OnPreflightRefused(event_.preflight_refused());
      case Event::kLoadingStarted:
        return OnLoadingStarted(event_.loading_started());
      case Event::kStepsTaken:
        return OnStepsTaken(event_.steps_taken());
      case Event::kHeldOutImproved:
        return OnHeldOutImproved(event_.held_out_improved());
      case Event::kSuspectFound:
        return OnSuspectFound(event_.suspect_found());
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
        return OnDriverStarted(event_.driver_started());
      default:
        return OnNodeEvent();
    }
  }();
  if (!accepted) return false;
  Settle();
  KeepBooks();
  index_.Update(state_);
  return true;
}

bool Transition::OnNodeEvent() {
  nodes_changed_ = true;
  switch (event_.event_case()) {
    case Event::kNodeJoined:
      return OnNodeJoined(event_.node_joined());
    case Event::kNodeLost:
      return OnNodeLost(event_.node_lost());
    case Event::kNodeEvicted:
      return OnNodeEvicted(event_.node_evicted());
    case Event::kNodeUncordoned:
      return OnNodeUncordoned(event_.node_uncordoned());
    case Event::kNodeDraining:
      return OnNodeDraining(event_.node_draining());
    case Event::kNodesForgotten:
      return OnNodesForgotten(event_.nodes_forgotten());
    case Event::kNodeQuarantined:
      return OnNodeQuarantined(event_.node_quarantined());
    case Event::kNodeSpareSet:
      return OnNodeSpareSet(event_.node_spare_set());
    case Event::kMachineTested:
      return OnMachineTested(event_.machine_tested());
    case Event::kEpochFenced:
      return OnEpochFenced(event_.epoch_fenced());
    case Event::kNodeBusy:
      return OnNodeBusy(event_.node_busy());
    case Event::kExchangeTested:
      return OnExchangeTested(event_.exchange_tested());
    default:
      return false;
  }
}

JobRecord* Transition::Current(const std::string& job_id, int64_t attempt) {
  JobRecord* job = Find(job_id);
  if (job == nullptr || IsTerminal(*job) || job->attempt() != attempt) return nullptr;
  return job;
}

void Transition::Stamp(google::protobuf::Timestamp* time) const {
  SetTime(event_.time_unix_nanos(), time);
}

JobRecord* Transition::Find(absl::string_view job_id) {
  const int place = index_.PlaceOf(job_id);
  if (place < 0) return nullptr;
  index_.Touch(place);
  return state_.mutable_jobs(place);
}

NodeRecord* Transition::NodeToChange(const std::string& node_id) {
  nodes_changed_ = true;
  index_.TouchNode(node_id);
  return FindNode(&state_, node_id);
}

void Transition::Enter(JobRecord* job, pb::Stage stage) {
  MEGASCALE_CHECK_MSG(!IsTerminal(*job), "a terminal job never changes");
  Touch(*job);
  const bool was_queued = job->stage() == pb::STAGE_QUEUED;
  // Agents that already hold get no new state, so the version that they have applied stays valid.
  if (!IsHold(job->stage()) || !IsHold(stage)) job->set_stage_event(state_.num_events());
  job->set_stage(stage);
  stages_changed_ = true;
  if (state_.rules() < 5) return;
  if (stage != pb::STAGE_QUEUED && stage != pb::STAGE_WAIT_FOR_SLOTS) {
    // An attempt that fails soon does not end the wait of a job that recovers: OnProgress does.
    if (state_.rules() < 6 || was_queued || stage == pb::STAGE_ENDED) {
      job->clear_waiting_since_unix_nanos();
    }
  } else if (job->waiting_since_unix_nanos() == 0) {
    job->set_waiting_since_unix_nanos(event_.time_unix_nanos());
  }
}

void Transition::SetStatus(JobRecord* job, control::JobState job_state, const std::string& reason,
                           const std::string& message) {
  if (job->state() == job_state && job->reason() == reason && job->message() == message) return;
  Touch(*job);
  job->set_state(job_state);
  job->set_reason(reason);
  job->set_message(message);
}

void Transition::End(JobRecord* job, control::JobState job_state, const std::string& reason,
                     const std::string& message) {
  PutBackUnread(job);
  pb::Ending* ending = job->mutable_ending();
  ending->set_state(job_state);
  ending->set_reason(reason);
  ending->set_message(message);
  if (!LeavesCheckpoints(state_, *job)) return Finish(job);
  if (job->stage() == pb::STAGE_FENCE && AllFenced(state_, *job) &&
      !RetainingNodeOf(state_, *job).empty()) {
    job->clear_finalize();
    Enter(job, pb::STAGE_RETAIN);
    return SetStatus(job, job->state(), reason,
                     absl::StrCat(message, "; waits for older checkpoints to be deleted"));
  }
  Finish(job, "no agent of the job could be told to delete them");
}

void Transition::SettleRetain(JobRecord* job) {
  Touch(*job);  // another node may have to delete now
  if (RetainingNodeOf(state_, *job).empty()) Finish(job, "the agents that could delete them left");
}

void Transition::Finish(JobRecord* job, const std::string& why) {
  const pb::Ending ending = job->ending();
  job->clear_ending();
  Enter(job, pb::STAGE_ENDED);
  job->clear_refusing();
  const std::string left =
      why.empty() ? ""
                  : absl::StrCat("; checkpoints older than step ", job->committed(0).step(),
                                 " may be left in ", CheckpointDirectory(*job), ": ", why);
  SetStatus(job, ending.state(), ending.reason(), absl::StrCat(ending.message(), left));
  job->set_ended_unix_nanos(event_.time_unix_nanos());
  job->clear_finalize();
}

void Transition::Complete(JobRecord* job) {
  End(job, control::JOB_STATE_SUCCEEDED, "Completed",
      absl::StrCat(job->submitted().spec().train().steps(), " steps completed"));
}

bool Transition::OnDriverStarted(const pb::DriverStarted& started) {
  index_.TouchOpen();
  index_.TouchNodes();
  state_.set_rules(started.rules());
  if (!started.secret().empty()) state_.set_secret(started.secret());
  state_.set_exchange_rate(started.exchange_rate());
  SetMachineTests(started.machine_tests());
  // One of the two may have been asked by the driver before this one, and not the other.
  while (state_.exchanges_size() > 0) DropExchange(state_.exchanges_size() - 1);
  for (JobRecord& job : *state_.mutable_jobs()) {  // an older driver did not note it
    const bool waits = job.stage() == pb::STAGE_QUEUED || job.stage() == pb::STAGE_WAIT_FOR_SLOTS;
    if (state_.rules() >= 10 && job.has_data() && !IsTerminal(job)) KeepFiles(&job);
    if (state_.rules() < 5 || !waits || job.waiting_since_unix_nanos() != 0) continue;
    job.set_waiting_since_unix_nanos(event_.time_unix_nanos());
  }
  for (NodeRecord& node : *state_.mutable_nodes()) {  // an older driver did not note it
    if (state_.rules() < 4 || node.alive() || node.lost_unix_nanos() != 0) continue;
    node.set_lost_unix_nanos(event_.time_unix_nanos());
  }
  if (started.epoch() <= state_.epoch()) return true;
  const bool is_first = state_.epoch() == 0;
  state_.set_epoch(started.epoch());
  if (!is_first || started.restored()) BeginEpoch();
  return true;
}

// --- requests ---------------------------------------------------------------------------------

bool Transition::OnSubmitted(const pb::JobSubmitted& submitted) {
  if (index_.PlaceOf(submitted.job_id()) >= 0) return false;
  JobRecord* job = state_.add_jobs();
  *job->mutable_submitted() = submitted;
  job->set_submitted_unix_nanos(event_.time_unix_nanos());
  index_.Add(state_);
  Enter(job, pb::STAGE_QUEUED);
  SetStatus(job, control::JOB_STATE_PENDING, "WaitingForSlots", "");
  return true;
}

bool Transition::OnCancel(const pb::CancelRequested& cancel) {
  JobRecord* job = Find(cancel.job_id());
  if (job == nullptr || IsTerminal(*job) || job->has_cancel()) return false;
  *job->mutable_cancel() = cancel;
  if (job->stage() == pb::STAGE_QUEUED) {
    End(job, control::JOB_STATE_CANCELLED, "CancelRequested", "cancelled before it started");
    return true;
  }
  const bool runs = job->stage() == pb::STAGE_RUN || job->stage() == pb::STAGE_LEAVE;
  Enter(job, runs ? pb::STAGE_STOP : pb::STAGE_FENCE);
  SetStatus(job, control::JOB_STATE_CANCELLING, "CancelRequested",
            job->stage() == pb::STAGE_STOP ? "the ranks stop at the end of a step"
                                           : "waits for its processes to end");
  return true;
}

bool Transition::OnJobsForgotten(const pb::JobsForgotten& forgotten) {
  const std::set<std::string> ids(forgotten.job_ids().begin(), forgotten.job_ids().end());
  auto* jobs = state_.mutable_jobs();
  const auto kept = std::remove_if(jobs->begin(), jobs->end(), [&](const JobRecord& job) {
    return IsTerminal(job) && ids.count(JobId(job)) > 0;
  });
  if (kept == jobs->end()) return false;
  jobs->erase(kept, jobs->end());
  index_.Removed(state_);
  return true;
}

// --- the attempt's life -----------------------------------------------------------------------

bool Transition::OnPreflightPassed(const pb::PreflightPassed& passed) {
  JobRecord* job = Current(passed.job_id(), passed.attempt());
  const NodeRecord* node = FindNode(state_, passed.node_id());
  if (job == nullptr || job->stage() != pb::STAGE_PREFLIGHT || node == nullptr ||
      HasPreflight(*job, node->hello())) {
    return false;
  }
  auto* preflights = job->mutable_preflights();
  const auto known =
      std::find_if(preflights->begin(), preflights->end(),
                   [&](const auto& preflight) { return preflight.node_id() == passed.node_id(); });
  if (known != preflights->end()) index_.TouchLists(*job);
  pb::NodePreflight& preflight = known != preflights->end() ? *known : *preflights->Add();
  preflight.set_node_id(passed.node_id());
  *preflight.mutable_preflight() = passed.preflight();
  preflight.clear_again();
  if (passed.preflight().owns_directory()) job->set_owns_directory(true);
  if (state_.rules() >= 4) preflight.set_incarnation(node->hello().incarnation());
  return true;
}

bool Transition::OnPreflightRefused(const pb::PreflightRefused& refused) {
  JobRecord* job = Current(refused.job_id(), refused.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_PREFLIGHT) return false;
  const PreflightRefusal refusal = {refused.node_id(), refused.message(), refused.storage_away()};
  if (state_.rules() >= 4 && job->has_restore()) {
    RefuseNode(job, refusal);
  } else {
    Refuse(job, refusal);
  }
  return true;
}

bool Transition::OnLoadingStarted(const pb::LoadingStarted& started) {
  JobRecord* job = Current(started.job_id(), started.attempt());
  if (job == nullptr || job->time_book().phase() != TimeBook::PHASE_START) return false;
  EnterPhase({TimeBook::PHASE_LOAD, false, event_.time_unix_nanos()}, job->mutable_time_book());
  return true;
}

bool Transition::OnStepsTaken(const pb::StepsTaken& taken) {
  JobRecord* job = Current(taken.job_id(), taken.attempt());
  if (job == nullptr || job->time_book().phase() != TimeBook::PHASE_TRAIN) return false;
  CountSteps(taken, job->mutable_time_book());
  EndSuspicion(job);
  return true;
}

bool Transition::OnTrainingStarted(const pb::TrainingStarted& started) {
  JobRecord* job = Current(started.job_id(), started.attempt());
  if (job == nullptr || job->stage() != pb::STAGE_RUN ||
      job->state() != control::JOB_STATE_STARTING) {
    return false;
  }
  const std::string directory = job->restore().directory();
  for (const std::string& node_id : NoteRead(job)) {
    if (state_.rules() < 4) break;
    Quarantine(node_id, absl::StrCat("job ", JobId(*job), ": could not read checkpoint ", directory,
                                     ", which other machines could"));
  }
  ForgetLinksAmong(NodesOf(*job), &state_);  // all its ranks have joined
  SetStatus(job, control::JOB_STATE_RUNNING, "Training", "");
  return true;
}

bool Transition::OnProgress(const pb::AttemptProgressed& progressed) {
  JobRecord* job = Current(progressed.job_id(), progressed.attempt());
  if (job == nullptr || progressed.step() <= job->best_step()) return false;
  job->set_best_step(progressed.step());
  job->set_progressed(true);
  if (state_.rules() >= 6) job->clear_waiting_since_unix_nanos();
  BlameNodesLeft(job);
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
    if (index_.HasEnded(*job, failed.rank())) return false;
    index_.NoteNode(failed.node_id());
    auto* ended = job->add_ended();
    ended->set_rank(failed.rank());
    ended->set_failed(true);
  } else {
    if (job->host_failed()) return false;
    job->set_host_failed(true);
  }
  pb::Failure found;
  if (failed.has_noticed_at()) *found.mutable_noticed_at() = failed.noticed_at();
  // Otherwise it has another cause, such as the rendezvous store.
  found.set_at_restore(failed.failure().at_restore() &&
                       failed.failure().failure_class() == telemetry::FAILURE_CLASS_CORRUPT);
  found.set_of_another_run(found.at_restore() && failed.failure().of_another_run());
  found.set_signal(failed.failure().signal());
  Culprit& culprit = *found.mutable_culprit();
  culprit.set_node_id(failed.node_id());
  culprit.set_rank(failed.rank());
  culprit.set_failure_class(failed.failure().failure_class());
  culprit.set_evidence(failed.failure().message());
  if (state_.rules() >= 10) NoteUnreached(*job, failed.failure(), &found);
  Fail(job, std::move(found));
  return true;
}

bool Transition::OnRankEnded(const pb::RankEnded& ended) {
  JobRecord* job = Current(ended.job_id(), ended.attempt());
  if (job == nullptr || index_.HasEnded(*job, ended.rank())) return false;
  if (job->stage() != pb::STAGE_RUN && !StopsAtStep(*job)) return false;
  auto* record = job->add_ended();
  record->set_rank(ended.rank());
  record->set_step(ended.step());
  record->set_stopped(ended.stopped());
  if (job->stage() == pb::STAGE_RUN && ended.stopped()) {
    record->set_failed(true);
    pb::Failure found;
    Culprit& culprit = *found.mutable_culprit();
    culprit.set_node_id(NodeOfRank(*job, ended.rank()));
    culprit.set_rank(ended.rank());
    culprit.set_failure_class(telemetry::FAILURE_CLASS_EXITED);
    culprit.set_evidence(absl::StrCat("stopped at step ", ended.step(), " without being asked"));
    Fail(job, std::move(found));
  }
  return true;
}

void Transition::Fail(JobRecord* job, pb::Failure found) {
  Touch(*job);
  if (job->has_cancel()) return;
  const Culprit& culprit = found.culprit();
  if (job->has_leave()) {
    if (job->stage() != pb::STAGE_LEAVE) return;
    Enter(job, pb::STAGE_FENCE);
    SetStatus(job, control::JOB_STATE_RECOVERING, job->leave().reason(),
              absl::StrCat("leaves node ", job->leave().node_id(),
                           " without a checkpoint of its own, for ", Describe(culprit)));
    return;
  }
  const bool first = job->stage() == pb::STAGE_PREFLIGHT || job->stage() == pb::STAGE_RUN;
  if (!first && job->stage() != pb::STAGE_FENCE) return;
  found.mutable_culprit()->set_attempt(job->attempt());
  if (first) {
    job->clear_failures();
    job->set_num_failures(0);
  } else if (job->failures().empty()) {  // as an older driver left it
    *job->add_failures()->mutable_culprit() = job->culprit();
    job->set_num_failures(1);
  }
  const bool better = first || IsBetterCause(found, job->failures(0));
  AddFailure(found, better, job);
  if (!better) return;
  *job->mutable_culprit() = culprit;
  if (first) {
    job->clear_fenced();
    Enter(job, pb::STAGE_FENCE);
  }
  SetStatus(job, control::JOB_STATE_RECOVERING, ReasonOf(culprit), Describe(culprit));
}

// As NodesToFence, without its look at all nodes of the job.
bool Transition::MustFence(const JobRecord& job, const std::string& node_id) const {
  const NodeRecord* node = FindNode(state_, node_id);
  if (node == nullptr || !node->alive()) return false;
  if (IsFencedEverywhere(state_, job)) return !HasFencedEpoch(state_, *node);
  return index_.On(node_id).count(index_.PlaceOf(JobId(job))) > 0;
}

bool Transition::OnNodeFenced(const pb::NodeFenced& fenced) {
  JobRecord* job = Current(fenced.job_id(), fenced.attempt());
  if (job == nullptr || index_.HasFenced(*job, fenced.node_id())) return false;
  if (!IsHold(job->stage()) && !StopsAtStep(*job)) return false;
  if (!MustFence(*job, fenced.node_id())) return false;
  index_.NoteNode(fenced.node_id());
  auto* entry = job->add_fenced();
  entry->set_node_id(fenced.node_id());
  // An evicted or draining node does not keep them.
  if (TakesRanks(*FindNode(state_, fenced.node_id()))) {
    *entry->mutable_snapshots() = fenced.snapshots();
  }
  return true;
}

bool Transition::OnShardsStored(const pb::ShardsStored& stored) {
  JobRecord* job = Current(stored.job_id(), stored.attempt());
  if (job == nullptr) return false;
  if (job->stage() != pb::STAGE_RUN && !StopsAtStep(*job)) return false;
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
  committed->rbegin()->set_committed_unix_nanos(event_.time_unix_nanos());
  std::stable_sort(committed->begin(), committed->end(),
                   [](const auto& a, const auto& b) { return a.step() < b.step(); });
  KeepCheckpoints(job);
  ForgetUnread(manifest.step(), job);
  auto* finalize = job->mutable_finalize();
  finalize->erase(std::remove(finalize->begin(), finalize->end(), manifest.step()),
                  finalize->end());
  return true;
}

bool Transition::OnHeldOutImproved(const pb::HeldOutImproved& improved) {
  JobRecord* job = Current(improved.job_id(), improved.attempt());
  if (job == nullptr) return false;
  const bool is_lower =
      !job->has_lowest_held_out() || improved.held_out().loss() < job->lowest_held_out().loss();
  if (!is_lower) return false;
  *job->mutable_lowest_held_out() = improved.held_out();
  KeepCheckpoints(job);
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
    SetStatus(job, control::JOB_STATE_CANCELLING, "CancelRequested",
              "did not stop in time; waits for its processes to be killed");
    return true;
  }
  if (stage == pb::STAGE_LEAVE) {
    Enter(job, pb::STAGE_FENCE);
    SetStatus(job, control::JOB_STATE_RECOVERING, job->leave().reason(),
              absl::StrCat("leaves node ", job->leave().node_id(),
                           " without a checkpoint of its own, which was not stored in time"));
    return true;
  }
  if (WaitsForFinalCheckpoint(*job)) {
    pb::Failure found;
    *found.mutable_culprit() = CheckpointNotStored(*job);
    Fail(job, std::move(found));
    return true;
  }
  if (stage == pb::STAGE_RUN || AllFenced(state_, *job)) return false;
  if (state_.rules() >= 4) return GiveUpUnfenced(job);
  EndUnfenced(job);
  return true;
}

// Ends a job whose processes could not all be killed. These can commit nothing, but while they are
// left no other attempt may begin.
void Transition::EndUnfenced(JobRecord* job) {
  const std::string left =
      absl::StrCat("; ", base::Shortlist(UnfencedNodesOf(state_, *job)),
                   " could not end its processes in time: look there for processes that hang "
                   "in storage or in a device, and restart the machine if need be");
  if (job->has_cancel()) {
    End(job, control::JOB_STATE_CANCELLED, "CancelRequested",
        absl::StrCat(CancelledMessage(*job), left));
  } else if (HasAllSteps(*job)) {
    Complete(job);
  } else if (job->has_leave()) {
    End(job, control::JOB_STATE_FAILED, job->leave().reason(),
        absl::StrCat("left node ", job->leave().node_id(), left));
  } else {
    End(job, control::JOB_STATE_FAILED, ReasonOf(job->culprit()),
        absl::StrCat(Describe(job->culprit()), left));
  }
}

bool Transition::OnRetentionEnded(const pb::RetentionEnded& ended) {
  JobRecord* job = Current(ended.job_id(), ended.attempt());
  if (job == nullptr || !WaitsForRetention(state_, *job) ||
      NewestCommittedStep(*job) != ended.step() || (WritesManifest(*job) && !ended.timed_out())) {
    return false;
  }
  const bool all_deleted = !ended.timed_out() && ended.error().empty();
  if (state_.rules() >= 10 && all_deleted) job->set_retained_step(ended.step());
  if (job->stage() == pb::STAGE_STOP) Enter(job, pb::STAGE_FENCE);
  if (job->stage() == pb::STAGE_RUN) Complete(job);
  if (job->stage() == pb::STAGE_RETAIN) {
    Finish(job, all_deleted         ? ""
                : ended.timed_out() ? "their deletion took too long"
                                    : ended.error());
  }
  return true;
}

bool Apply(const Event& event, DriverState* state, JobIndex* index) {
  return Transition(event, state, index).Run();
}

bool Apply(const Event& event, DriverState* state) {
  JobIndex index(*state);
  return Apply(event, state, &index);
}

}  // namespace megascale::driver
