#include "controlplane/driver/shell/driver_shell.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/admission/admission.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/storage/state_check.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

constexpr absl::Duration kTickInterval = absl::Milliseconds(100);
constexpr absl::Duration kStallMax = absl::Seconds(2);  // between two ticks
constexpr absl::Duration kForgetInterval = absl::Minutes(1);
constexpr size_t kSummaryBytesMax = 300;
// Larger submits are not copied, to bound the memory of what waits to be written.
constexpr size_t kSmallSubmitBytes = 64 << 10;

std::string JobFileOf(const pb::JobSubmitted& submitted) {
  return absl::StrCat(submitted.directory(), "/", kJobFile);
}

// Writes the resolved specification, for people and as evidence of the job that is independent of
// the log. Written once, after the job's submit is durable. A failure is only logged.
void WriteJobFile(const pb::JobSubmitted& submitted, JobFiles* files) {
  const std::string path = JobFileOf(submitted);
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto made = google::protobuf::util::MessageToJsonString(submitted.spec(), &text, options);
  const absl::Status written = made.ok()
                                   ? files->WriteSoon(path, text)
                                   : absl::InternalError(absl::StrCat(path, ": ", made.ToString()));
  if (!written.ok()) base::LogWarning(written.message());
}

// Returns an event as text for the log, without secrets, agent keys and whole specifications.
std::string Summary(const Event& event) {
  if (event.has_job_submitted()) {
    return absl::StrCat("job ", event.job_submitted().job_id(), " was submitted");
  }
  Event shown = event;
  shown.clear_time_unix_nanos();
  if (shown.has_driver_started()) shown.mutable_driver_started()->clear_secret();
  if (shown.has_node_joined()) shown.mutable_node_joined()->mutable_hello()->clear_key();
  const std::string text = shown.ShortDebugString();
  return text.size() <= kSummaryBytesMax ? text : text.substr(0, kSummaryBytesMax) + "…";
}

}  // namespace

DriverShell::DriverShell(Options options)
    : options_(std::move(options)),
      new_nodes_(options_.new_nodes_per_hour),
      monitor_(options_.clock->Monotonic()),
      loss_logs_(options_.files, options_.loss_log_interval),
      tensorboard_logs_(options_.files),
      data_files_(options_.files),
      evidences_(options_.files) {}

absl::StatusOr<std::unique_ptr<DriverShell>> DriverShell::Create(Options options) {
  std::unique_ptr<DriverShell> shell(new DriverShell(std::move(options)));
  RETURN_IF_ERROR(shell->Replay());
  return shell;
}

absl::Status DriverShell::Replay() {
  ASSIGN_OR_RETURN(LogContents contents, options_.log->ReadAll());
  state_ = std::move(contents.state);
  num_snapshot_ = state_.num_events();
  index_ = JobIndex(state_);
  for (const Event& event : contents.events) Apply(event, &state_, &index_);
  for (JobRecord& job : *state_.mutable_jobs()) {  // an older version may have taken it
    job::UpgradeJobSpec(job.mutable_submitted()->mutable_spec());
  }
  for (const int place : index_.open()) {
    const JobRecord& job = state_.jobs(place);
    if (job.attempt() > 0) LossLogOf(job);
    to_describe_.push_back(JobId(job));
  }
  keeps_evidence_ = state_.rules() >= 5;
  log_clock_ = std::make_unique<const LogClock>(options_.clock, state_);
  Feed(StartedEvent(state_, {options_.clock->Wall(), options_.secret, false, options_.machine_tests,
                             options_.exchange_rate}));
  if (options_.agents_ended) LoseAllNodes();
  // Newer than every version that a driver before this one sent.
  version_ = VersionOfEvent(state_.num_events());
  publisher_ = std::make_unique<ViewPublisher>(ViewPublisher::Sources{
      &state_, &index_, &monitor_, &loss_logs_, &counts_, options_.files, log_clock_.get()});
  return absl::OkStatus();
}

void DriverShell::LoseAllNodes() {
  std::vector<Event> events;
  for (const NodeRecord& node : state_.nodes()) {
    if (!node.alive()) continue;
    pb::NodeLost* lost = events.emplace_back().mutable_node_lost();
    lost->set_node_id(node.hello().node_id());
    lost->set_incarnation(node.hello().incarnation());
    lost->set_why("its agent ended with the driver before");
  }
  FeedAll(std::move(events));
}

void DriverShell::Begin() {
  monitor_ = AgentMonitor(options_.clock->Monotonic(), options_.node_timeout);
  for (const JobRecord& job : state_.jobs()) {
    const LossLog* log = loss_logs_.Find(JobId(job));
    if (log != nullptr) monitor_.NoteStep(JobId(job), log->last_step());
    // The driver before this one may have ended before it wrote it.
    if (keeps_evidence_ && evidences_.MayBeMissing(state_, job)) KeepEvidence(job);
  }
}

// --- inputs -----------------------------------------------------------------------------------

absl::Status DriverShell::Submit(pb::JobSubmitted submit) {
  submit.set_directory(absl::StrCat(options_.state_directory, "/jobs/", submit.job_id()));
  job::UpgradeJobSpec(submit.mutable_spec());
  ASSIGN_OR_RETURN(const bool is_new, IsNewSubmit(indexed(), submit));
  if (!is_new) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOutsideState(submit, options_.state_directory));
  RETURN_IF_ERROR(CheckExchanges(state_, submit));
  if (options_.files->Exists(absl::StrCat(submit.directory(), "/", kForgottenFile))) {
    return absl::AlreadyExistsError(absl::StrCat(
        "job id ", submit.job_id(), ": ", submit.directory(),
        " belongs to an earlier job with this id, whose record the driver has deleted; choose "
        "another job id, or leave it out"));
  }
  if (index_.Find(state_, submit.job_id()) != nullptr) {
    Event forgotten;
    forgotten.mutable_jobs_forgotten()->add_job_ids(submit.job_id());
    DropTraces(submit.job_id());
    Feed(std::move(forgotten));
  }
  to_describe_.push_back(submit.job_id());
  Event event;
  *event.mutable_job_submitted() = std::move(submit);
  Feed(std::move(event));
  return absl::OkStatus();
}

absl::Status DriverShell::Cancel(const pb::CancelRequested& cancel) {
  ASSIGN_OR_RETURN(const bool is_new, IsNewCancel(indexed(), cancel.job_id()));
  if (!is_new) return absl::OkStatus();
  Event event;
  *event.mutable_cancel_requested() = cancel;
  Feed(std::move(event));
  return absl::OkStatus();
}

absl::Status DriverShell::Evict(const pb::NodeEvicted& evicted) {
  ASSIGN_OR_RETURN(const bool is_new, IsNewEviction(state_, evicted));
  if (!is_new) return absl::OkStatus();
  Event event;
  *event.mutable_node_evicted() = evicted;
  Feed(std::move(event));
  return absl::OkStatus();
}

absl::Status DriverShell::Uncordon(const std::string& node_id) {
  ASSIGN_OR_RETURN(const bool is_new, IsNewUncordon(state_, node_id));
  if (!is_new) return absl::OkStatus();
  const NodeRecord* node = FindNode(state_, node_id);
  // A lost machine may be gone for good. Then nobody can end its processes, and nobody needs to.
  const bool may_have_processes = node->has_quarantine() && node->alive();
  if (may_have_processes && !monitor_.reports().HasReported(state_, node_id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", node_id,
                     ": its agent has not reported since the driver started, so its processes may "
                     "still run; repeat this in a moment"));
  }
  for (const agent::ActualJob& actual : monitor_.reports().JobsOn(node_id)) {
    const JobRecord* job = index_.Find(state_, actual.job_id());
    const bool is_over = job == nullptr || !HoldsSlots(*job) || IsFenced(*job, node_id) ||
                         !monitor_.reports().IsOn(*job, node_id);
    if (!is_over || actual.num_processes() == 0 || !may_have_processes) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("node ", node_id, ": still has ", actual.num_processes(),
                     " processes of attempt ", actual.attempt(), " of job ", actual.job_id(),
                     ", which cannot be ended; restart the machine, or end its agent, first"));
  }
  Event event;
  event.mutable_node_uncordoned()->set_node_id(node_id);
  Feed(std::move(event));
  return absl::OkStatus();
}

absl::Status DriverShell::SetSpare(const pb::NodeSpareSet& spare_set) {
  ASSIGN_OR_RETURN(const bool is_new, IsNewSpareSet(state_, spare_set));
  if (!is_new) return absl::OkStatus();
  Event event;
  *event.mutable_node_spare_set() = spare_set;
  Feed(std::move(event));
  return absl::OkStatus();
}

absl::Status DriverShell::Suspect(const pb::SuspectFound& found) {
  // Asking its agents takes time: the job may have gone on meanwhile.
  const JobRecord* job = index_.Find(state_, found.job_id());
  if (job == nullptr || HasStallSuspicion(*job)) return absl::OkStatus();
  const megascale::control::v1::Suspicion& suspicion = found.suspicion();
  const bool stands_still = counts_.StandsStill(*job, monitor_.reports().awake());
  if (stands_still != IsOfStall(suspicion)) return absl::OkStatus();
  if (!stands_still && !MayReplaceSuspicion(*job, suspicion, log_clock_->Now())) {
    return absl::OkStatus();
  }
  Event event;
  *event.mutable_suspect_found() = found;
  Feed(std::move(event));
  return absl::OkStatus();
}

absl::Status DriverShell::Report(pb::SuspectFound found) {
  MoveTimes(-log_clock_->Ahead(), &found);
  ASSIGN_OR_RETURN(const bool is_new, IsNewReport(indexed(), log_clock_->Now(), &found));
  if (!is_new) return absl::OkStatus();
  Event event;
  *event.mutable_suspect_found() = std::move(found);
  Feed(std::move(event));
  return absl::OkStatus();
}

// --- a round ----------------------------------------------------------------------------------

absl::Status DriverShell::Round(const std::vector<Input>& inputs) {
  std::vector<Output> outputs;
  for (const Input& input : inputs) outputs.push_back(input());
  RETURN_IF_ERROR(stop_);
  const absl::Duration now = options_.clock->Monotonic();
  const bool tick = now >= next_tick_;
  if (tick) Tick(now);
  const bool changed = state_changed_;
  const JobIndex::Touched touched = index_.TakeTouched();
  RETURN_IF_ERROR(Commit(touched.jobs));
  for (const std::string& job_id : std::exchange(to_describe_, {})) {
    if (const JobRecord* job = index_.Find(state_, job_id)) Describe(*job);
  }
  if (changed || tick) CutLossLogs();
  if (tick) AskForDataFiles(now);
  if (changed) {
    KeepTimers(now);
    TellAttempts(touched.jobs);
    evidences_.Refresh(state_);
  }
  publisher_->Publish(touched, now);
  ForgetEnded(touched.jobs);
  NoteListeners(touched);
  // Before agents hear of it: who acts on what an agent was told finds the agent's stream joined.
  for (const Output& output : outputs) output();
  // Acknowledgements of steps alone wait for the next tick: they are not worth a message each.
  if (tick) NoteStepWords();
  if (changed || tick) SendDesired();
  return absl::OkStatus();
}

// What is known of a job that has ended is in its record and its folder.
void DriverShell::ForgetEnded(const std::set<std::string>& job_ids) {
  for (const std::string& job_id : job_ids) {
    const JobRecord* job = index_.Find(state_, job_id);
    if (job == nullptr || !IsTerminal(*job)) continue;
    loss_logs_.Forget(job_id);
    tensorboard_logs_.Forget(job_id);
    counts_.Forget(job_id);
    monitor_.ForgetJob(job_id);
    data_files_.Forget(job_id);
    cut_attempts_.erase(job_id);
    acknowledged_.erase(job_id);
  }
}

void DriverShell::Tick(absl::Duration now) {
  // What the timers wait for may have stood still, too: `megascale local` can be suspended.
  const absl::Duration stall = now - next_tick_;
  for (auto& [key, timer] : timers_) {
    if (stall > kStallMax) timer.first += stall;
  }
  next_tick_ = now + kTickInterval;
  FeedAll(monitor_.OnTick(indexed(), now));
  std::vector<Event> due;
  for (auto it = timers_.begin(); it != timers_.end();) {
    if (it->second.first > now) {
      ++it;
      continue;
    }
    due.push_back(it->second.second);
    it = timers_.erase(it);
  }
  FeedAll(std::move(due));
  FeedAll(counts_.EventsDue(now));
  for (const std::string& job_id : loss_logs_.RetryFailed(now)) publisher_->TouchSteps(job_id);
  Forget(now);
}

void DriverShell::Forget(absl::Duration now) {
  if (now < next_forgetting_) return;
  next_forgetting_ = now + kForgetInterval;
  ForgetJobs();
  ForgetNodes();
}

void DriverShell::DropTraces(const std::string& job_id) {
  described_.erase(job_id);
  evidences_.Forget(job_id);
  loss_logs_.Drop(job_id);
}

void DriverShell::ForgetNodes() {
  Event event;
  for (const std::string& node_id : NodesToForget(state_, log_clock_->Now())) {
    if (links_.count(node_id) > 0) continue;
    event.mutable_nodes_forgotten()->add_node_ids(node_id);
    monitor_.ForgetNode(node_id);
    lines_logged_.erase(node_id);
  }
  if (event.has_nodes_forgotten()) Feed(std::move(event));
}

void DriverShell::ForgetJobs() {
  const std::vector<std::string> ids = JobsToForget(state_, options_.retention, log_clock_->Now());
  Event event;
  for (const std::string& id : ids) {
    // Written before the job is forgotten: without this mark a folder that the log does not know
    // means a damaged log.
    const std::string mark =
        absl::StrCat(index_.Find(state_, id)->submitted().directory(), "/", kForgottenFile);
    if (!options_.files->OpenAppended(mark).ok()) continue;
    event.mutable_jobs_forgotten()->add_job_ids(id);
    publisher_->ForgetJob(id);
    DropTraces(id);
  }
  if (event.has_jobs_forgotten()) Feed(std::move(event));
}

void DriverShell::KeepEvidence(const JobRecord& job) {
  loss_logs_.Finish(JobId(job), options_.clock->Monotonic());
  const LossLog* log = loss_logs_.Find(JobId(job));
  evidences_.Keep(state_, job, log == nullptr ? job.best_step() : log->last_step(),
                  loss_logs_.WarningOf(JobId(job)), monitor_);
}

void DriverShell::Feed(Event event) {
  evidences_.OnEvent(event, indexed(), monitor_);
  for (Event& steps : counts_.EventsBefore(event, options_.clock->Monotonic())) {
    Feed(std::move(steps));
  }
  event.set_time_unix_nanos(absl::ToUnixNanos(log_clock_->Now()));
  event.set_clock_ahead_seconds(absl::ToInt64Seconds(log_clock_->Ahead()));
  const bool accepted = Apply(event, &state_, &index_);
  if (accepted && event.event_case() != Event::kAttemptProgressed &&
      event.event_case() != Event::kStepsTaken) {
    base::LogInfo(Summary(event));
  }
  pending_.push_back(std::move(event));
  state_changed_ = true;
}

void DriverShell::FeedAll(std::vector<Event> events) {
  for (Event& event : events) Feed(std::move(event));
}

// Steps are durable before the events that tell of them, and before those that end their attempt:
// a restarted driver must not know of steps that it has lost.
void DriverShell::SyncLossLogs(const std::set<std::string>& touched_jobs) {
  const absl::Duration now = options_.clock->Monotonic();
  std::set<std::string> told;
  for (const Event& event : pending_) {
    if (event.has_steps_taken()) told.insert(event.steps_taken().job_id());
    if (event.has_held_out_improved()) told.insert(event.held_out_improved().job_id());
    if (event.has_attempt_progressed()) told.insert(event.attempt_progressed().job_id());
    // Who sees the checkpoint sees its steps, even if the round has later ones.
    if (event.has_manifest_written()) told.insert(event.manifest_written().job_id());
  }
  for (const std::string& job_id : touched_jobs) {
    const JobRecord* job = index_.Find(state_, job_id);
    const auto cut = cut_attempts_.find(job_id);
    const bool goes_on =
        job != nullptr && job->stage() == pb::STAGE_RUN &&
        (job->attempt() <= 1 || (cut != cut_attempts_.end() && cut->second == job->attempt()));
    if (!goes_on) told.insert(job_id);
  }
  for (const std::string& job_id : told) loss_logs_.Sync(job_id, now);
  for (const std::string& job_id : loss_logs_.SyncInTurn(now)) publisher_->TouchSteps(job_id);
}

absl::Status DriverShell::Commit(const std::set<std::string>& touched_jobs) {
  SyncLossLogs(touched_jobs);
  if (pending_.empty()) return absl::OkStatus();
  const int64_t num_before = state_.num_events() - static_cast<int64_t>(pending_.size());
  RETURN_IF_ERROR(options_.log->Append(num_before, pending_));
  pending_.clear();
  // A snapshot has all jobs and machines: it is not worth it for fewer events than these.
  const int64_t interval = std::max<int64_t>(options_.snapshot_interval_events,
                                             state_.jobs_size() + state_.nodes_size());
  if (state_.num_events() - num_snapshot_ >= interval) {
    RETURN_IF_ERROR(options_.log->WriteSnapshot(state_));
    num_snapshot_ = state_.num_events();
  }
  return absl::OkStatus();
}

void DriverShell::KeepTimers(absl::Duration now) {
  std::map<std::string, std::pair<absl::Duration, Event>> kept;
  for (Timer& timer : TimersFor(indexed())) {
    const auto it = timers_.find(timer.key);
    kept[timer.key] = it != timers_.end()
                          ? it->second
                          : std::make_pair(now + timer.delay, std::move(timer.when_due));
  }
  timers_ = std::move(kept);
}

void DriverShell::TellAttempts(const std::set<std::string>& job_ids) {
  bool is_news = NoteExchanges();
  for (const std::string& job_id : job_ids) {
    const JobRecord* job = index_.Find(state_, job_id);
    const auto told = told_attempts_.find(job_id);
    if (job != nullptr && HoldsSlots(*job)) {
      const std::vector<std::string>& nodes = monitor_.reports().Nodes(*job);
      const bool is_known = told != told_attempts_.end() &&
                            told->second.attempt == job->attempt() && told->second.nodes == nodes;
      if (is_known) continue;
      told_attempts_[job_id] = {job->attempt(), nodes};
    } else if (told != told_attempts_.end()) {
      // If it has not ended, it is queued again after a restore.
      if (job != nullptr && IsTerminal(*job)) KeepEvidence(*job);
      told_attempts_.erase(told);
    } else {
      continue;
    }
    is_news = true;
  }
  if (is_news && options_.on_attempts) options_.on_attempts(told_attempts_);
}

bool DriverShell::NoteExchanges() {
  std::set<std::string> groups;
  for (const pb::Exchange& exchange : state_.exchanges()) {
    RunningAttempt attempt = {1, {}};
    for (const auto& member : exchange.members()) attempt.nodes.push_back(member.node_id());
    const std::string group = GroupOf(exchange);
    groups.insert(group);
    told_attempts_[group] = std::move(attempt);
  }
  for (const std::string& group : told_exchanges_) {
    if (groups.count(group) == 0) told_attempts_.erase(group);
  }
  return std::exchange(told_exchanges_, groups) != groups;
}

// Returns the attempt of each job that the node reports.
std::map<std::string, int64_t> DriverShell::KnownAttempts(const std::string& node_id) const {
  std::map<std::string, int64_t> known;
  for (const agent::ActualJob& actual : monitor_.reports().JobsOn(node_id)) {
    known[actual.job_id()] = actual.attempt();
  }
  return known;
}

void DriverShell::NoteListeners(const JobIndex::Touched& touched) {
  listeners_.merge(desired_parts_.Update(indexed(), touched));
  all_listen_ = all_listen_ || touched.all_node_records;
}

void DriverShell::SendDesired() {
  state_changed_ = false;
  if (!all_listen_ && listeners_.empty()) return;
  const DesiredStates states(state_, index_, &desired_parts_);
  if (all_listen_) {
    for (auto& [node_id, link] : links_) SendDesired(node_id, states, &link);
  } else {
    for (const std::string& node_id : listeners_) {
      const auto link = links_.find(node_id);
      if (link != links_.end()) SendDesired(node_id, states, &link->second);
    }
  }
  all_listen_ = false;
  listeners_.clear();
}

void DriverShell::SendDesired(const std::string& node_id, const DesiredStates& states, Link* link) {
  if (FindNode(state_, node_id) == nullptr) return;
  std::map<std::string, int64_t> known = KnownAttempts(node_id);
  std::map<std::string, StepWord> steps = StepWordsFor(node_id);
  std::string print = states.Fingerprint(node_id);
  if (known == link->known && steps == link->steps && print == link->print) return;
  agent::DesiredState desired = states.For(node_id, known);
  for (auto& job : *desired.mutable_jobs()) {
    job.set_step_duty(steps[job.job_id()].duty);
    if (const auto step = loss_logs_.Acknowledged(job.job_id())) job.set_acked_step(*step);
  }
  version_ = std::max(version_ + 1, desired.version());
  desired.set_version(version_);
  desired.set_proof(ProofOf(state_, state_.epoch(), version_));
  link->link->SendDesired(desired);
  link->print = std::move(print);
  link->known = std::move(known);
  link->steps = std::move(steps);
}

void DriverShell::Describe(const JobRecord& job) {
  if (!described_.insert(JobId(job)).second) return;
  const pb::JobSubmitted& submitted = job.submitted();
  JobFiles* files = options_.files;
  if (files->Exists(JobFileOf(submitted))) return;
  if (!options_.do_later || submitted.ByteSizeLong() > kSmallSubmitBytes) {
    return WriteJobFile(submitted, files);
  }
  options_.do_later([submitted, files] { WriteJobFile(submitted, files); });
}

}  // namespace megascale::driver
