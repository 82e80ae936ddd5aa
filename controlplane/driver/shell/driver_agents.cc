// The part of driver_shell.h about agents: who may join, what they report, and what they keep of a
// job until the driver has it: step records, from reports to loss logs and what agents are told
// about them; and lists of files.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "runtime/base/log.h"
#include "runtime/base/repeated.h"
#include "runtime/base/status.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

namespace {

constexpr absl::Duration kLineInterval = absl::Minutes(1);

// An agent whose loop stands still, on a slow disk, say, counts as alive for 30 s. It may have the
// steps.
constexpr absl::Duration kCommitPatienceMin = absl::Seconds(35);

// Returns true if the agent has steps of the job's attempt: so the attempt ran, from the job's
// restore point, although it may be about to end.
bool HasStepsOf(const JobRecord& job, const agent::ActualJob& actual) {
  return std::any_of(actual.steps().begin(), actual.steps().end(),
                     [&](const auto& step) { return step.attempt() == job.attempt(); });
}

}  // namespace

absl::Status DriverShell::MayJoin(const agent::Hello& hello, const AgentPeer& peer) const {
  if (hello.num_slots() > options_.slots_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", hello.node_id(), ": offers ", hello.num_slots(),
        " slots, and the driver takes at ", "most ", options_.slots_max,
        " of an agent; give the agent fewer --slots, or the driver a ", "higher --slots-max"));
  }
  Contact contact = monitor_.reports().ContactWith(hello.node_id());
  // An agent whose stream has ended is out of contact, however fresh its last report is.
  if (contact == Contact::kHeard && links_.count(hello.node_id()) == 0) contact = Contact::kGone;
  return CheckJoin(state_, hello, peer.certificate, contact);
}

// Limits the lines about a node, because a refused agent asks again and again.
void DriverShell::LogSeldom(const std::string& node_id, const AgentPeer& peer,
                            const std::string& line) {
  // Made-up ids count as one, so that the map stays small.
  const bool is_known = FindNode(state_, node_id) != nullptr;
  const absl::Duration now = options_.clock->Monotonic();
  const auto [logged, first] = lines_logged_.try_emplace(
      is_known ? node_id : absl::StrCat("\n", peer.certificate), now);  // no id has a newline
  if (!first && now - logged->second < kLineInterval) return;
  logged->second = now;
  base::LogWarning(line);
}

absl::Status DriverShell::CompareEpochs(const agent::ActualState& known) {
  if (stop_.ok()) stop_ = CheckIsNewest(state_, known, version_);
  ASSIGN_OR_RETURN(const bool is_behind, IsBehind(state_, known));
  if (!is_behind) return absl::OkStatus();
  base::LogWarning(absl::StrCat("an agent has served another driver, whose epoch is later (",
                                known.epoch(),
                                "): this machine's clock is or was behind; this driver, which is "
                                "new, goes above that epoch"));
  Feed(NewerEpochEvent(state_, known.epoch(), options_.clock->Wall()));
  return absl::OkStatus();
}

bool DriverShell::OnHello(agent::Hello hello, std::shared_ptr<AgentLink> link) {
  agent::ActualState served;
  served.set_epoch(hello.known().epoch());
  served.set_known_version(hello.known().version());
  served.set_known_proof(hello.known().proof());
  hello.clear_known();
  const AgentPeer peer = link->peer();
  const NodeRecord* known = FindNode(state_, hello.node_id());
  absl::Status admitted = MayJoin(hello, peer);
  if (admitted.ok()) admitted = CompareEpochs(served);
  if (admitted.ok() && known == nullptr) {
    admitted = new_nodes_.Admit(peer.certificate, options_.clock->Monotonic());
  }
  if (!admitted.ok()) {
    LogSeldom(hello.node_id(), peer, absl::StrCat("refused an agent: ", admitted.message()));
    link->Close(admitted);
    return false;
  }
  Link& entry = links_[hello.node_id()];
  if (entry.link != nullptr && entry.link != link) {
    const bool newer = known != nullptr && known->hello().incarnation() != hello.incarnation();
    entry.link->Close(newer ? absl::AbortedError(absl::StrCat(
                                  "node ", hello.node_id(),
                                  ": a newer agent with this id connected; this one must end"))
                            : absl::UnavailableError("this agent connected again"));
  }
  entry = Link{std::move(link), {}, {}, {}};
  listeners_.insert(hello.node_id());
  publisher_->TouchAgent(hello.node_id());
  state_changed_ = true;
  // Another key is another machine, which asks for the name of one that was named.
  const bool is_new = known == nullptr || known->hello().key() != hello.key();
  std::vector<Event> events = monitor_.OnHello(state_, hello, options_.clock->Monotonic(), peer);
  for (Event& event : events) {
    event.mutable_node_joined()->set_unnamed(is_new && options_.names_nodes);
  }
  FeedAll(std::move(events));
  return true;
}

void DriverShell::OnReport(const std::string& node_id, agent::ActualState report) {
  if (report.too_large_bytes() > 0) {
    LogSeldom(node_id, {},
              absl::StrCat("the report of node ", node_id, " has ", report.too_large_bytes(),
                           " bytes, more than a message may have: its agent lives, but "
                           "what its jobs do is not known"));
  }
  // An older agent does not tell what it knows when it joins.
  if (const absl::Status right = CompareEpochs(report); !right.ok()) {
    LogSeldom(node_id, {}, absl::StrCat("node ", node_id, ": ", right.message()));
  }
  publisher_->TouchAgent(node_id);
  if (Counts(node_id, report)) {
    TakeSteps(node_id, report);
    for (agent::ActualJob& job : *report.mutable_jobs()) HoldCommits(&job);
    evidences_.OnReport(node_id, report, indexed());
  }
  FeedAll(monitor_.OnReport(indexed(), node_id, std::move(report), options_.clock->Monotonic()));
  const auto link = links_.find(node_id);
  if (link != links_.end() && link->second.known != KnownAttempts(node_id)) {
    listeners_.insert(node_id);
  }
}

bool DriverShell::Counts(const std::string& node_id, const agent::ActualState& report) const {
  const NodeRecord* node = FindNode(state_, node_id);
  return node != nullptr && node->hello().incarnation() == report.incarnation() &&
         IsOfThisEpoch(state_, report);
}

void DriverShell::OnGone(const std::string& node_id, const AgentLink* link) {
  const auto it = links_.find(node_id);
  if (it != links_.end() && it->second.link.get() == link) links_.erase(it);
}

// --- what agents keep ---------------------------------------------------------------------------

// Steps count only from agents that hold ranks of the attempt.
void DriverShell::TakeSteps(const std::string& node_id, const agent::ActualState& report) {
  for (const auto& actual : report.jobs()) {
    const JobRecord* job = index_.Find(state_, actual.job_id());
    if (job == nullptr || IsTerminal(*job) || !monitor_.reports().IsOn(*job, node_id)) continue;
    // Appending before a rollback that is decided but not yet done would undo it.
    if (job->attempt() > 1 && cut_attempts_[actual.job_id()] != job->attempt()) {
      if (job->stage() == pb::STAGE_RUN) continue;
      if (HasStepsOf(*job, actual)) CutLossLog(*job);
    }
    Describe(*job);
    const absl::Duration now = options_.clock->Monotonic();
    const int64_t newest = loss_logs_.Append(*job, actual.steps(), now);
    counts_.Count(*job, actual, newest, {now, log_clock_->Now(), monitor_.reports().awake()});
    monitor_.NoteStep(actual.job_id(), newest);
    TakeHeldOut(*job, actual, newest);
    if (!actual.steps().empty()) publisher_->TouchSteps(actual.job_id());
    const LossLog* log = loss_logs_.Find(actual.job_id());
    if (job->submitted().spec().tensorboard() && log != nullptr) {
      tensorboard_logs_.Follow(actual.job_id(), job->submitted().directory(), *log,
                               options_.clock->Wall());
    }
  }
}

// The lowest loss on held-out text is durable, because it decides which checkpoint is kept.
void DriverShell::TakeHeldOut(const JobRecord& job, const agent::ActualJob& actual,
                              int64_t newest) {
  const bool has_lowest = job.has_lowest_held_out();
  const megascale::telemetry::v1::StepRecord* lowest = nullptr;
  for (const auto& step : actual.steps()) {
    const bool counts = step.has_held_out_loss() && step.attempt() == job.attempt() &&
                        step.step() <= newest && std::isfinite(step.held_out_loss());
    if (!counts) continue;
    const bool is_lower = lowest != nullptr
                              ? step.held_out_loss() < lowest->held_out_loss()
                              : !has_lowest || step.held_out_loss() < job.lowest_held_out().loss();
    if (is_lower) lowest = &step;
  }
  if (lowest == nullptr) return;
  Event event;
  pb::HeldOutImproved* improved = event.mutable_held_out_improved();
  improved->set_job_id(JobId(job));
  improved->set_attempt(job.attempt());
  improved->mutable_held_out()->set_step(lowest->step());
  improved->mutable_held_out()->set_loss(lowest->held_out_loss());
  Feed(std::move(event));
}

LossLog* DriverShell::LossLogOf(const JobRecord& job) {
  const bool is_open = loss_logs_.Find(JobId(job)) != nullptr;
  LossLog* log = loss_logs_.Open(job, options_.clock->Monotonic());
  if (is_open || log == nullptr) return log;
  Describe(job);
  monitor_.NoteStep(JobId(job), log->last_step());
  return log;
}

// A checkpoint must not outlive the steps before it. These are reported by another agent than the
// checkpoint, perhaps by one that is silent for the moment; if it and its deputy are lost, the
// steps are computed again, from an older checkpoint. Lines that the log had and lost come no more,
// so while the attempt goes on its checkpoint does not wait for ever.
void DriverShell::HoldCommits(agent::ActualJob* reported) {
  if (reported->manifests().empty()) return;
  const std::string& job_id = reported->job_id();
  loss_logs_.Sync(job_id, options_.clock->Monotonic());
  publisher_->TouchSteps(job_id);
  const JobRecord* job = index_.Find(state_, job_id);
  const bool goes_on = job != nullptr && !IsHold(job->stage());
  const absl::Duration patience =
      goes_on ? std::max(2 * monitor_.reports().node_timeout(), kCommitPatienceMin)
              : absl::InfiniteDuration();
  base::EraseIf(reported->mutable_manifests(), [&](const agent::StoredManifest& manifest) {
    return loss_logs_.HoldsCommit(job_id, manifest.step(), patience, monitor_.reports().awake());
  });
}

void DriverShell::CutLossLogs() {
  for (const LossLogCut& cut : LossLogCutsFor(indexed())) {
    if (cut_attempts_[cut.job_id] != cut.attempt) CutLossLog(*index_.Find(state_, cut.job_id));
  }
}

void DriverShell::CutLossLog(const JobRecord& job) {
  const std::string& job_id = JobId(job);
  if (!loss_logs_.Cut(job, options_.clock->Monotonic())) return;
  const LossLog* log = loss_logs_.Find(job_id);
  monitor_.NoteStep(job_id, log != nullptr ? log->last_step() : job.restore().step());
  cut_attempts_[job_id] = job.attempt();
  publisher_->TouchSteps(job_id);
}

void DriverShell::NoteStepWords() {
  loss_logs_.ForEachAcknowledged([&](const std::string& job_id, int64_t step) {
    const auto [before, is_new] = acknowledged_.try_emplace(job_id, step);
    if (!is_new && std::exchange(before->second, step) == step) return;
    const JobRecord* job = index_.Find(state_, job_id);
    if (job == nullptr) return;
    listeners_.merge(monitor_.step_reporters().NodesWithSteps(*job));
  });
  listeners_.merge(monitor_.step_reporters().TakeChanged());
}

std::map<std::string, DriverShell::StepWord> DriverShell::StepWordsFor(const std::string& node_id) {
  std::map<std::string, StepWord> words;
  for (const int place : index_.On(node_id)) {
    const JobRecord& job = state_.jobs(place);
    StepWord& word = words[JobId(job)];
    word.duty = monitor_.step_reporters().DutyOf(job, node_id);
    if (!monitor_.step_reporters().HasSteps(job, node_id)) continue;
    word.acked = loss_logs_.Acknowledged(JobId(job)).value_or(0);
  }
  return words;
}

void DriverShell::AskForDataFiles(absl::Duration now) {
  for (const int place : index_.open()) {
    const JobRecord& job = state_.jobs(place);
    if (!HoldsSlots(job) || !data_files_.IsDue(job, now)) continue;
    for (const std::string& node_id : monitor_.reports().Nodes(job)) {
      const auto link = links_.find(node_id);
      const NodeRecord* node = FindNode(state_, node_id);
      if (link == links_.end() || node == nullptr || !node->hello().data_digests()) continue;
      agent::AgentDown question;
      question.mutable_fetch_data_files()->set_job_id(JobId(job));
      link->second.link->Send(std::move(question));
      break;
    }
  }
}

void DriverShell::OnDataFiles(const agent::DataFiles& files) {
  const JobRecord* job = index_.Find(state_, files.job_id());
  if (job != nullptr && !IsTerminal(*job)) data_files_.Take(*job, files);
}

void DriverShell::OnFetchDataFiles(const agent::FetchDataFiles& fetch, AgentLink* link) {
  agent::AgentDown answer;
  *answer.mutable_data_files() = data_files_.Read(index_.Find(state_, fetch.job_id()), fetch);
  link->Send(std::move(answer));
}

}  // namespace megascale::driver
