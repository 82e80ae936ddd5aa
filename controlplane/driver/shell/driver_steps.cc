// The part of driver_shell.h about what agents keep of a job until the driver has it: step records,
// from reports to loss logs and what agents are told about them; and lists of files.
#include <algorithm>
#include <utility>

#include "controlplane/driver/shell/driver_shell.h"
#include "runtime/base/repeated.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

namespace {

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
    if (!actual.steps().empty()) publisher_->TouchSteps(actual.job_id());
    const LossLog* log = loss_logs_.Find(actual.job_id());
    if (job->submitted().spec().tensorboard() && log != nullptr) {
      tensorboard_logs_.Follow(actual.job_id(), job->submitted().directory(), *log,
                               options_.clock->Wall());
    }
  }
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
