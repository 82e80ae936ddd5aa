// The part of driver_core.h that needs no further event: it begins and ends attempts.
#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/account/time_account.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/transition.h"
#include "controlplane/driver/exchanges/failed_links.h"
#include "runtime/base/repeated.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/job/data_digest.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

namespace {

// How long others may pass a job that waits for more slots than there are.
constexpr absl::Duration kPassedMax = absl::Minutes(10);

}  // namespace

std::string CancelledMessage(const JobRecord& job) {
  if (!EverCommitted(job)) return "cancelled";
  const auto newest = NewestCheckpoint(job);
  return absl::StrCat("cancelled; newest checkpoint: step ", newest.step(), " in ",
                      newest.directory());
}

void Transition::Settle() {
  ForgetOldLinks(event_.time_unix_nanos(), &state_);
  if (nodes_changed_) index_.NoteNodesChanged();
  if (state_.rules() < 2) return PlaceByRules1();
  const JobIndex::Places places = nodes_changed_ ? index_.open() : index_.touched();
  for (const int place : places) SettleStage(state_.mutable_jobs(place));
  index_.NoteSettled(places.size());
  if (nodes_changed_ || stages_changed_) PairMachines();
  PlaceWaiting();
}

void Transition::PlaceWaiting() {
  change_ = index_.ChangeSincePlaced(state_, event_.time_unix_nanos());
  if (change_ == JobIndex::Change::kNothing) return;
  if (state_.rules() < 5) {
    PlaceQueued(PlaceRecovering());
  } else {
    // Who is queued means nothing to jobs that recover.
    if (change_ == JobIndex::Change::kSlots) PlaceRecovering();
    PlaceQueue();
  }
  NoteAges();
  attempt_begun_ ? index_.NoteAttemptBegun() : index_.NotePlaced(state_, std::move(placed_));
}

// PlaceQueue moves the beginning of a wait that is later than now, and MayBePassed ends.
void Transition::NoteAges() {
  const int64_t now = event_.time_unix_nanos();
  int64_t from = std::numeric_limits<int64_t>::min();
  int64_t until = std::numeric_limits<int64_t>::max();
  for (const int place : Waiting()) {
    const JobRecord& job = state_.jobs(place);
    const int64_t since = job.waiting_since_unix_nanos();
    const int64_t end = since + absl::ToInt64Nanoseconds(kPassedMax);
    from = std::max(from, since);
    if (job.stage() != pb::STAGE_WAIT_FOR_SLOTS) continue;
    if (now < end) {
      until = std::min(until, end);
    } else {
      from = std::max(from, end);
    }
  }
  placed_.from_unix_nanos = from;
  placed_.until_unix_nanos = until;
}

std::set<std::string> NodesOf(const PlacementResult& placement) {
  std::set<std::string> node_ids;
  for (const auto& placed : placement.placements) node_ids.insert(placed.node_id());
  return node_ids;
}

PlacementResult Transition::TryToPlace(const JobRecord& job, const std::set<std::string>& givers) {
  index_.NotePlacementTry();
  if (!failed_pairs_.has_value()) failed_pairs_ = FailedPairs(state_);
  return PlaceJob(state_, job, *failed_pairs_, givers);
}

JobIndex::Places Transition::Waiting() const {
  JobIndex::Places places = index_.waiting();
  places.insert(index_.touched().begin(), index_.touched().end());
  return places;
}

std::vector<JobRecord*> Transition::QueueNow() {
  std::vector<std::pair<int64_t, JobRecord*>> queue;
  for (const int place : Waiting()) {
    JobRecord* job = state_.mutable_jobs(place);
    if (job->stage() != pb::STAGE_QUEUED) continue;
    queue.emplace_back(QueueKey(state_, *job, index_.SubmittedBy(place)), job);
  }
  std::stable_sort(queue.begin(), queue.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<JobRecord*> jobs;
  for (const auto& [key, job] : queue) jobs.push_back(job);
  return jobs;
}

void Transition::SettleStage(JobRecord* job) {
  if (job->stage() == pb::STAGE_PREFLIGHT) SettlePreflight(job);
  if (job->stage() == pb::STAGE_RUN) SettleRun(job);
  if (job->stage() == pb::STAGE_STOP) SettleStop(job);
  if (job->stage() == pb::STAGE_LEAVE) SettleLeave(job);
  if (job->stage() == pb::STAGE_FENCE) SettleFence(job);
  if (job->stage() == pb::STAGE_RETAIN) SettleRetain(job);
}

namespace {

// Returns what the job does now. The books know some phases of an attempt by its events alone.
TimeBook::Phase PhaseOf(const JobRecord& job) {
  const TimeBook::Phase known = job.time_book().phase();
  const bool runs = job.stage() == pb::STAGE_RUN || StopsAtStep(job);
  if (runs && job.ended_size() >= WorldSize(job)) return TimeBook::PHASE_STORE;
  switch (job.stage()) {
    case pb::STAGE_QUEUED:
    case pb::STAGE_WAIT_FOR_SLOTS:
      return TimeBook::PHASE_QUEUE;
    case pb::STAGE_PREFLIGHT:
      return TimeBook::PHASE_START;
    case pb::STAGE_RUN:
      if (job.state() != control::JOB_STATE_STARTING) return TimeBook::PHASE_TRAIN;
      return known == TimeBook::PHASE_LOAD ? known : TimeBook::PHASE_START;
    case pb::STAGE_STOP:
    case pb::STAGE_LEAVE:
      return known;
    case pb::STAGE_ENDED:
      return TimeBook::PHASE_ENDED;
    default:
      return TimeBook::PHASE_DECIDE;
  }
}

// An attempt ends by a failure unless somebody wanted its end.
bool HasFailed(const JobRecord& job, TimeBook::Phase phase) {
  if (job.has_leave() || job.has_cancel() || phase == TimeBook::PHASE_STORE) return false;
  return phase != TimeBook::PHASE_ENDED || job.state() == control::JOB_STATE_FAILED;
}

}  // namespace

void Transition::KeepBooks() {
  for (const int place : index_.touched()) {
    JobRecord& job = *state_.mutable_jobs(place);
    if (!job.has_time_book()) {
      if (IsTerminal(job)) continue;  // an older version's
      OpenBook(event_.time_unix_nanos(), job.mutable_time_book());
    }
    const TimeBook::Phase phase = PhaseOf(job);
    if (phase == job.time_book().phase()) continue;
    TimeBook* book = job.mutable_time_book();
    // An attempt begins again after its restore point, the first one after its checkpoint.
    const bool begins = phase == TimeBook::PHASE_START || phase == TimeBook::PHASE_TRAIN;
    if (begins && job.has_restore()) RollBack(job.restore().step(), book);
    EnterPhase({phase, HasFailed(job, phase), event_.time_unix_nanos()}, book);
  }
}

void Transition::PlaceByRules1() {
  std::string waits;
  for (JobRecord& job : *state_.mutable_jobs()) {
    SettleStage(&job);
    const bool queued = job.stage() == pb::STAGE_QUEUED;
    if (!queued && (job.stage() != pb::STAGE_WAIT_FOR_SLOTS || !AllFenced(state_, job))) {
      if (IsHold(job.stage())) waits = JobId(job);
      continue;
    }
    if (queued && !waits.empty()) {
      SetStatus(&job, job.state(), "WaitingInQueue", absl::StrCat("waits behind job ", waits));
      continue;
    }
    PlacementResult placement = TryToPlace(job);
    if (!placement.placements.empty()) {
      StartAttempt(&job, std::move(placement));
      continue;
    }
    SetStatus(&job, job.state(), "WaitingForSlots", placement.message);
    waits = JobId(job);
  }
}

const JobRecord* Transition::PlaceRecovering() {
  const JobRecord* first = nullptr;
  for (const int place : Waiting()) {
    JobRecord& job = *state_.mutable_jobs(place);
    if (job.stage() == pb::STAGE_WAIT_FOR_SLOTS && index_.AllFenced(state_, job) &&
        !WaitsForTests(&job)) {
      PlacementResult placement = TryToPlace(job);
      if (!placement.placements.empty()) {
        StartAttempt(&job, std::move(placement));
      } else if (!PlaceByTaking(&job)) {
        SetStatus(&job, job.state(), "WaitingForSlots", placement.message);
      }
    }
    if (first == nullptr && IsHold(job.stage()) && !job.has_cancel()) first = &job;
  }
  return first;
}

bool Transition::WaitsForTests(JobRecord* job) {
  const std::set<std::string> nodes = TestsToWaitFor(state_, *job);
  if (nodes.empty()) return false;
  SetStatus(job, job->state(), "TestingMachines",
            absl::StrCat("waits for the tests of ",
                         base::Shortlist(std::vector<std::string>(nodes.begin(), nodes.end()))));
  return true;
}

// Two recovering jobs may each hold slots that the other needs and would wait for ever. So the job
// that was submitted first may take the slots of later ones, beginning with the newest. These lose
// their snapshots on the nodes taken and go on from storage.
bool Transition::PlaceByTaking(JobRecord* job) {
  std::set<std::string> givers;
  for (int i = state_.jobs_size() - 1; i >= 0 && &state_.jobs(i) != job; --i) {
    const JobRecord& later = state_.jobs(i);
    const bool waits =
        later.stage() == pb::STAGE_WAIT_FOR_SLOTS || later.stage() == pb::STAGE_BACKOFF;
    if (!waits || later.placements().empty() || !index_.AllFenced(state_, later)) continue;
    givers.insert(JobId(later));
    PlacementResult placement = TryToPlace(*job, givers);
    if (placement.placements.empty()) continue;
    StartAttempt(job, std::move(placement));
    const std::vector<std::string> taken = NodesOf(*job);
    for (const std::string& giver : givers) {
      JobRecord* gives = Find(giver);
      const std::vector<std::string> held = NodesOf(*gives);
      if (std::find_first_of(held.begin(), held.end(), taken.begin(), taken.end()) == held.end()) {
        continue;
      }
      gives->clear_placements();
      gives->clear_fenced();
    }
    return true;
  }
  return false;
}

// Places queued jobs strictly in the order of submission.
void Transition::PlaceQueued(const JobRecord* recovering) {
  const std::string first =
      recovering == nullptr ? "" : absl::StrCat("job ", JobId(*recovering), ", which recovers");
  std::string before = first;
  int64_t position = 0;
  for (const int place : Waiting()) {
    JobRecord& job = *state_.mutable_jobs(place);
    if (job.stage() != pb::STAGE_QUEUED) continue;
    if (before.empty()) {
      PlacementResult placement = TryToPlace(job);
      if (!placement.placements.empty()) {
        StartAttempt(&job, std::move(placement));
        continue;
      }
      SetStatus(&job, job.state(), "WaitingForSlots",
                absl::StrCat("position ", ++position, " in the queue; ", placement.message));
    } else {
      SetStatus(&job, job.state(), "WaitingInQueue",
                absl::StrCat("position ", ++position, " in the queue, behind ", before, "; ",
                             NeededSlots(job)));
    }
    before = absl::StrCat("job ", JobId(job));
  }
}

// A recovering job that needs more slots than there are is not served by idle ones: others may pass
// it, but not for long, or they would hold the slots when its machines are back.
bool Transition::MayBePassed(const JobRecord& job) {
  const int64_t waited = event_.time_unix_nanos() - job.waiting_since_unix_nanos();
  if (job.stage() != pb::STAGE_WAIT_FOR_SLOTS || waited >= absl::ToInt64Nanoseconds(kPassedMax) ||
      !index_.AllFenced(state_, job)) {
    return false;
  }
  index_.NotePlacementTry();
  return NeedsMoreThanThereIs(state_, job);
}

void Transition::PlaceQueue() {
  const JobIndex::Places waiting = Waiting();
  for (const int place : waiting) {  // a clock that stepped back
    JobRecord& job = *state_.mutable_jobs(place);
    if (state_.rules() < 6 || job.waiting_since_unix_nanos() <= event_.time_unix_nanos()) continue;
    index_.Touch(place);
    job.set_waiting_since_unix_nanos(event_.time_unix_nanos());
  }
  std::string before;
  for (const int place : waiting) {
    const JobRecord& job = state_.jobs(place);
    if (!IsHold(job.stage()) || job.has_cancel() || MayBePassed(job)) continue;
    before = absl::StrCat("job ", JobId(job), ", which recovers");
    break;
  }
  int64_t position = 0;
  for (JobRecord* queued : QueueNow()) {
    JobRecord& job = *queued;
    ++position;
    if (!before.empty()) {
      SetStatus(&job, job.state(), "WaitingInQueue",
                absl::StrCat("position ", position, " in the queue, behind ", before, "; ",
                             NeededSlots(job)));
    } else if (TryQueued(&job)) {
      --position;
      continue;
    } else {
      SetStatus(&job, job.state(), "WaitingForSlots",
                absl::StrCat("position ", position, " in the queue; ", placed_.why_refused));
    }
    before = absl::StrCat("job ", JobId(job));
  }
}

bool Transition::TryQueued(JobRecord* job) {
  placed_.refused = index_.PlaceOf(JobId(*job));
  const std::string* known = change_ == JobIndex::Change::kQueue && !attempt_begun_
                                 ? index_.WhyRefused(placed_.refused)
                                 : nullptr;
  if (known != nullptr) {
    placed_.why_refused = *known;
    return false;
  }
  PlacementResult placement = TryToPlace(*job);
  // The machines of a round are in test, so that others are tried next.
  while (!placement.placements.empty() && BeginRoundsBefore(placement)) {
    placement = TryToPlace(*job);
  }
  placed_.why_refused = placement.message;
  if (placement.placements.empty()) return false;
  StartAttempt(job, std::move(placement));
  return true;
}

void Transition::StartAttempt(JobRecord* job, PlacementResult placement) {
  const agent::RestorePoint restore = ChooseRestore(state_.rules(), *job, placement.placements);
  const std::vector<std::string> before = NodesOf(*job);
  Touch(*job);
  attempt_begun_ = true;
  if (job->stage() != pb::STAGE_QUEUED) {
    job->set_attempt_reason(job->has_leave() ? job->leave().reason() : ReasonOf(job->culprit()));
  }
  job->clear_leave();
  job->clear_suspicion();
  job->set_attempt(job->attempt() + 1);
  job->set_instruction_set(placement.instruction_set);
  *job->mutable_placements() = {placement.placements.begin(), placement.placements.end()};
  job->set_binds_address(state_.rules() >= 10 && AllBindAddresses(state_, NodesOf(*job)));
  job->set_evaluates(state_.rules() >= 11 && AllEvaluate(state_, NodesOf(*job)));
  begun_on_.merge(NodesOf(placement));
  job->clear_ended();
  job->clear_fenced();
  job->clear_finalize();
  job->set_host_failed(false);
  job->set_progressed(false);
  for (const std::string& node_id : NodesOf(*job)) {
    if (state_.rules() >= 5) break;  // a spare that takes over stays one, for when the job ends
    if (std::binary_search(before.begin(), before.end(), node_id)) continue;
    NodeToChange(node_id)->clear_spare();
  }
  if (job->has_restore()) {
    // Only a preflight claims the directory.
    if (job->binds_address() && !job->owns_directory()) AskForPreflights(job);
    if (state_.rules() < 4 || HasAllPreflights(state_, *job)) {
      StartRun(job, restore);
      return;
    }
    // Agents keep what the attempt will start from while its preflight runs.
    *job->mutable_restore() = restore;
  } else {
    job->clear_preflights();
  }
  Enter(job, pb::STAGE_PREFLIGHT);
  SetStatus(job, control::JOB_STATE_STARTING, "Preflight",
            absl::StrCat("checks data and directories on ", base::Shortlist(NodesOf(*job))));
}

void Transition::StartRun(JobRecord* job, const agent::RestorePoint& restore) {
  *job->mutable_restore() = restore;
  Enter(job, pb::STAGE_RUN);
  SetStatus(job, control::JOB_STATE_STARTING, "Starting",
            absl::StrCat("attempt ", job->attempt(), " from ", Describe(restore)));
}

namespace {

// Checkpoints of the job have other names than those that the directory has had before.
void GoOnAbove(JobRecord* job) {
  for (const auto& passed : job->preflights()) {
    job->set_attempt(std::max(job->attempt(), passed.preflight().newest_attempt() + 1));
  }
}

// Returns the first reason to refuse the job. Requires: every node passed its own preflight.
PreflightRefusal JudgePreflights(const JobRecord& job) {
  const auto& first = job.preflights(0);
  for (const auto& other : job.preflights()) {
    if (!job.has_data() || job::AreSameData(job.data(), other.preflight().data())) continue;
    return {other.node_id(), absl::StrCat("data.files: the text on node ", other.node_id(),
                                          " differs from that on which the job has trained; every "
                                          "machine needs the same files")};
  }
  for (const auto& other : job.preflights()) {
    if (job::AreSameData(first.preflight().data(), other.preflight().data())) continue;
    return {other.node_id(), absl::StrCat("data.files: the text on node ", other.node_id(),
                                          " differs from that on node ", first.node_id(),
                                          "; every machine needs the same files")};
  }
  const int64_t offset = job.has_data() ? job.sample_offset() : first.preflight().sample_offset();
  for (const auto& other : job.preflights()) {
    if (other.preflight().sample_offset() == offset) continue;
    return {
        other.node_id(),
        absl::StrCat("the agent of node ", other.node_id(),
                     " does not begin at the first sample that ", job.submitted().from_checkpoint(),
                     " has not trained on, because of its version; upgrade it")};
  }
  const int64_t first_step = job.has_data() ? job.first_step() : first.preflight().first_step();
  const int64_t steps = job.submitted().spec().train().steps();
  if (!job.submitted().from_checkpoint().empty() && first_step >= steps) {
    return {"", absl::StrCat("train.steps: ", steps, " is not more than the ", first_step,
                             " steps of ", job.submitted().from_checkpoint())};
  }
  return {};
}

}  // namespace

void Transition::KeepFiles(JobRecord* job) {
  auto* data = job->mutable_data();
  for (auto& preflight : *job->mutable_preflights()) {
    auto* found = preflight.mutable_preflight()->mutable_data();
    if (data->file_sha256().empty()) *data->mutable_file_sha256() = found->file_sha256();
    *found = job::DigestOf(*found);
  }
  const auto digest = job::DigestOf(*data);
  data->set_files_sha256(digest.files_sha256());
  data->set_num_files(digest.num_files());
}

void Transition::SettlePreflight(JobRecord* job) {
  // Thousands of nodes pass one after the other.
  const size_t num_nodes = index_.NodesAt(index_.PlaceOf(JobId(*job))).size();
  if (static_cast<size_t>(job->preflights_size()) < num_nodes) return;
  if (!HasAllPreflights(state_, *job)) return;
  const bool is_first = !job->has_restore();
  const PreflightRefusal refusal = JudgePreflights(*job);
  if (!refusal.message.empty()) return is_first ? Refuse(job, refusal) : RefuseNode(job, refusal);
  if (!is_first && state_.rules() >= 10) KeepFiles(job);
  if (!is_first) return StartRun(job, job->restore());
  if (state_.rules() >= 4) {
    *job->mutable_data() = job->preflights(0).preflight().data();
    if (state_.rules() >= 10) KeepFiles(job);
    job->set_first_step(job->preflights(0).preflight().first_step());
    job->set_sample_offset(job->preflights(0).preflight().sample_offset());
  }
  if (state_.rules() >= 10) GoOnAbove(job);
  StartRun(job, ChooseRestore(state_.rules(), *job,
                              {job->placements().begin(), job->placements().end()}));
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
  // The host lives until the checkpoints that the last one makes superfluous are deleted.
  if (WaitsForRetention(state_, *job)) {
    SetStatus(job, job->state(), "Retention", "waits for older checkpoints to be deleted");
  } else if (HasAllSteps(*job)) {
    Complete(job);
  } else {
    SetStatus(job, job->state(), "FinalCheckpoint", "waits for the last checkpoint to be stored");
  }
}

void Transition::SettleStop(JobRecord* job) {
  if (!index_.AllGone(*job)) return;
  const int64_t step = job->cancel().checkpoint() ? StepBeingStored(state_, *job) : 0;
  if (step > 0) {
    SetStatus(job, job->state(), "FinalCheckpoint",
              absl::StrCat("waits for the checkpoint of step ", step, " to be stored"));
    return;
  }
  if (WaitsForRetention(state_, *job)) {
    SetStatus(job, job->state(), "Retention", "waits for older checkpoints to be deleted");
    return;
  }
  Enter(job, pb::STAGE_FENCE);
}

void Transition::SettleLeave(JobRecord* job) {
  if (!index_.AllGone(*job)) return;
  if (const int64_t step = StepBeingStored(state_, *job); step > 0) {
    SetStatus(job, job->state(), job->leave().reason(),
              absl::StrCat("leaves node ", job->leave().node_id(),
                           ": waits for the checkpoint of step ", step, " to be stored"));
    return;
  }
  Enter(job, pb::STAGE_FENCE);
}

void Transition::SettleFence(JobRecord* job) {
  if (!index_.AllFenced(state_, *job)) return;
  if (!job->has_cancel()) {
    if (job->has_leave()) {
      AfterLeave(job);
    } else {
      AfterFailure(job);
    }
    return;
  }
  End(job, control::JOB_STATE_CANCELLED, "CancelRequested", CancelledMessage(*job));
}

// Leaving is not a failure: it neither counts as one nor costs a backoff.
void Transition::AfterLeave(JobRecord* job) {
  const bool was_restored = state_.rules() >= 5 && job->leave().reason() == kDriverRestored;
  if (was_restored && job->instruction_set().empty()) {
    job->clear_leave();  // it was queued
    job->clear_fenced();
    Enter(job, pb::STAGE_QUEUED);
    return SetStatus(job, control::JOB_STATE_PENDING, "WaitingForSlots", "");
  }
  if (HasAllSteps(*job)) return Complete(job);
  if (job->progressed()) ForgetFailures(job);
  Enter(job, pb::STAGE_WAIT_FOR_SLOTS);
}

// Does not count as an attempt without progress: the number of checkpoints to try bounds these.
bool Transition::AfterFailedRead(JobRecord* job) {
  NoteFailedRead(job);
  if (const std::string next = NextRead(state_, job); !next.empty()) {
    AddToEvidence(next, job);
    return true;
  }
  End(job, control::JOB_STATE_FAILED,
      EverCommitted(*job) ? "CheckpointsUnreadable" : ReasonOf(job->culprit()),
      NothingCanBeRead(*job));
  return false;
}

void Transition::AfterFailure(JobRecord* job) {
  const Culprit& culprit = job->culprit();
  if (HasAllSteps(*job)) return Complete(job);
  if (WasRefusedByNode(*job)) return AfterRefusal(job);
  // The storage of these machines may be back by now.
  base::EraseIf(job->mutable_refusing(), [](const auto& node) { return node.storage_away(); });
  const bool older_rules = state_.rules() < 3;
  if (!IsRetried(culprit.failure_class()) || (older_rules && CannotStartByRules2(*job))) {
    TestAfterFailure(*job);
    End(job, control::JOB_STATE_FAILED, ReasonOf(culprit), Describe(culprit));
    return;
  }
  index_.TouchLists(*job);  // the next two may drop snapshots of fenced nodes
  if (older_rules) StepOverCorruptByRules2(job);
  if (!older_rules && CouldNotRead(*job)) {
    if (!AfterFailedRead(job)) return;
  } else {
    if (!older_rules && CouldNotReadMemory(*job)) StepOverMemory(job);
    CountFailure(job);
  }
  if (state_.rules() >= 10 && CouldNotUseStorage(*job)) AskForPreflights(job);
  NoteFailedLinks(*job);
  TestAfterFailure(*job);
  ExchangeAfterFailure(*job);
  if (GaveUp(job)) return;
  const absl::Duration backoff = BackoffOf(*job);
  if (backoff == absl::ZeroDuration()) {
    Enter(job, pb::STAGE_WAIT_FOR_SLOTS);
    return;
  }
  Enter(job, pb::STAGE_BACKOFF);
  SetStatus(job, control::JOB_STATE_RECOVERING, ReasonOf(culprit),
            absl::StrCat(Describe(culprit), "; next attempt in ", absl::FormatDuration(backoff)));
}

}  // namespace megascale::driver
