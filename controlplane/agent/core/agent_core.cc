#include "controlplane/agent/core/agent_core.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "controlplane/agent/core/job_core.h"
#include "controlplane/agent/core/machine_check_core.h"
#include "controlplane/protocol/recent_texts.h"

namespace megascale::agent {

AgentCore::AgentCore(std::string node_id, std::string incarnation)
    : node_id_(std::move(node_id)),
      incarnation_(std::move(incarnation)),
      check_(std::make_unique<MachineCheckCore>()) {}

AgentCore::~AgentCore() = default;

void AgentCore::OnDesired(const v1::DesiredState& desired, absl::Duration now) {
  if (desired.incarnation() != incarnation_ || desired.epoch() < epoch_) return;
  if (desired.epoch() == epoch_ && desired.version() < version_) return;
  const bool is_new_epoch = desired.epoch() > epoch_ && epoch_ != 0;
  if (is_new_epoch) {
    applied_version_ = 0;
    for (const auto& [job_id, job] : jobs_) job->Abandon();
    check_->Abandon();
  }
  epoch_ = desired.epoch();
  version_ = desired.version();
  proof_ = desired.proof();
  drain_known_ = desired.draining();
  driver_takes_digests_ = desired.data_digests();
  check_->SetWanted(desired.has_machine_test() ? &desired.machine_test() : nullptr);
  for (const auto& [job_id, job] : jobs_) job->SetUnwanted();
  is_understood_ = true;
  for (const v1::DesiredJob& wanted : desired.jobs()) {
    const bool is_here = jobs_.count(wanted.job_id()) > 0;
    const bool is_known = JobCore::UnknownIn(wanted).empty();
    is_understood_ = is_understood_ && is_known;
    // The job was dropped here after it was reported; the next report tells the driver.
    if (!is_here && (wanted.as_before() || !is_known)) continue;
    std::unique_ptr<JobCore>& job = jobs_[wanted.job_id()];
    if (job == nullptr) job = std::make_unique<JobCore>(node_id_);
    job->SetDesired(wanted, now);
  }
}

v1::DataFiles AgentCore::DataFilesOf(const v1::FetchDataFiles& fetch) const {
  v1::DataFiles files;
  files.set_request_id(fetch.request_id());
  files.set_job_id(fetch.job_id());
  const auto job = jobs_.find(fetch.job_id());
  if (job != jobs_.end()) *files.mutable_file_sha256() = job->second->files();
  if (files.file_sha256().empty()) {
    files.set_code(static_cast<int>(absl::StatusCode::kNotFound));
  } else if (files.ByteSizeLong() > kReportBytesMax) {
    files.clear_file_sha256();
    files.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  }
  return files;
}

v1::KnownState AgentCore::known() const {
  v1::KnownState known;
  known.set_epoch(epoch_);
  known.set_version(version_);
  known.set_proof(proof_);
  return known;
}

bool AgentCore::has_processes() const {
  return check_->has_process() || std::any_of(jobs_.begin(), jobs_.end(), [](const auto& item) {
           return item.second->has_processes();
         });
}

JobCore* AgentCore::JobOf(int64_t process_id) {
  for (const auto& [job_id, job] : jobs_) {
    if (job->Has(process_id)) return job.get();
  }
  return nullptr;
}

void AgentCore::OnPrepareFailed(const std::string& job_id, const absl::Status& why,
                                absl::Duration now) {
  const auto job = jobs_.find(job_id);
  if (job != jobs_.end()) job->second->OnPrepareFailed(why, now);
}

void AgentCore::OnStoreChecked(const std::string& job_id, int64_t attempt,
                               const absl::Status& outcome, absl::Duration now) {
  const auto job = jobs_.find(job_id);
  if (job != jobs_.end()) job->second->OnStoreChecked(attempt, outcome, now);
}

void AgentCore::OnStarted(int64_t process_id, absl::StatusOr<int> pid, absl::Duration now) {
  if (check_->Has(process_id)) return check_->OnStarted(pid, now);
  if (JobCore* job = JobOf(process_id)) job->OnStarted(process_id, std::move(pid), now);
}

void AgentCore::OnEnded(int64_t process_id, const ProcessEnd& end, absl::Duration now) {
  if (check_->Has(process_id)) return check_->OnEnded(end, now);
  if (JobCore* job = JobOf(process_id)) job->OnEnded(process_id, end, now);
}

bool AgentCore::OnWorkerMessage(int64_t process_id, const link::v1::FromWorker& message) {
  JobCore* job = JobOf(process_id);
  return job != nullptr && job->OnWorkerMessage(process_id, message);
}

void AgentCore::OnHostMessage(int64_t process_id, const link::v1::FromHost& message) {
  if (JobCore* job = JobOf(process_id)) job->OnHostMessage(process_id, message);
}

void AgentCore::OnTestMessage(int64_t process_id, const v1::MachineTest& message) {
  if (check_->Has(process_id)) check_->OnMessage(message);
}

void AgentCore::OnHostProgress(int64_t process_id) {
  if (JobCore* job = JobOf(process_id)) job->OnHostProgress(process_id);
}

void AgentCore::OnSnapshots(const std::string& job_id,
                            std::vector<checkpoint::SealedSnapshot> held) {
  if (const auto job = jobs_.find(job_id); job != jobs_.end()) {
    job->second->OnSnapshots(std::move(held));
  }
}

std::vector<Action> AgentCore::Reconcile(absl::Duration now) {
  std::vector<Action> actions;
  const bool is_free = std::none_of(jobs_.begin(), jobs_.end(),
                                    [](const auto& item) { return item.second->holds_machine(); });
  check_->Reconcile(is_free, now, &last_process_id_, &actions);
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    // A test never runs beside processes of a job. A job without processes waits for its end.
    if (!check_->has_process() || job->second->has_processes() || job->second->finished()) {
      job->second->Reconcile(now, &last_process_id_, &actions);
    }
    if (job->second->finished()) {
      actions.push_back(DropMemory{job->first});
      std::optional<v1::DesiredJob> next = job->second->TakeNext();
      if (next.has_value()) {  // it was wanted again while its processes of an older epoch ended
        job->second = std::make_unique<JobCore>(node_id_);
        job->second->SetDesired(*next, now);
        continue;  // its first actions come after DropMemory
      }
      job = jobs_.erase(job);
    } else {
      ++job;
    }
  }
  if (is_understood_ && std::all_of(jobs_.begin(), jobs_.end(),
                                    [](const auto& item) { return item.second->applied(); })) {
    applied_version_ = version_;
  }
  return actions;
}

absl::Duration AgentCore::NextWake() const {
  absl::Duration wake = check_->NextWake();
  if (check_->has_process()) return wake;  // the jobs wait for its end
  for (const auto& [job_id, job] : jobs_) wake = std::min(wake, job->NextWake());
  return wake;
}

std::vector<int64_t> AgentCore::HungHosts(
    const std::map<int64_t, telemetry::v1::RankStatus>& heartbeats) const {
  std::vector<int64_t> hung;
  for (const auto& [job_id, job] : jobs_) {
    for (const int64_t id : job->HungHosts(heartbeats)) hung.push_back(id);
  }
  return hung;
}

absl::Duration AgentCore::report_interval() const {
  absl::Duration interval = absl::Seconds(1);
  for (const auto& [job_id, job] : jobs_) {
    if (job->heartbeat_interval() > absl::ZeroDuration()) {
      interval = std::min(interval, job->heartbeat_interval());
    }
  }
  return interval;
}

namespace {

// Cuts what stalled ranks did last to equal parts of `bytes_max`, at the end: the newest comes
// first.
void CutRecent(size_t bytes_max, v1::ActualState* state) {
  constexpr absl::string_view kMore = "...";
  const std::vector<std::string*> texts = protocol::RecentTextsOf(state);
  for (std::string* text : texts) {
    const size_t size = bytes_max / texts.size();
    if (text->size() <= size) continue;
    text->resize(size - std::min(size, kMore.size()));
    absl::StrAppend(text, kMore.substr(0, size));
  }
}

}  // namespace

v1::ActualState AgentCore::Report(const std::map<int64_t, telemetry::v1::RankStatus>& heartbeats,
                                  size_t bytes_max) const {
  v1::ActualState state;
  state.set_incarnation(incarnation_);
  state.set_draining(draining_);
  state.set_epoch(epoch_);
  state.set_known_version(version_);
  state.set_known_proof(proof_);
  const v1::ActualState alive = state;
  state.set_applied_version(applied_version_);
  const int num_jobs = std::max(1, static_cast<int>(jobs_.size()));
  const int steps_max = std::max(kStepsOfAJobMin, kStepsPerReportMax / num_jobs);
  for (const auto& [job_id, job] : jobs_) {
    *state.add_jobs() =
        job->Report(heartbeats, {.steps_max = steps_max, .as_list = !driver_takes_digests_});
  }
  if (keeper_silence_ >= kKeeperSilenceMin) {
    for (v1::ActualJob& job : *state.mutable_jobs()) {
      job.set_keeper_silent_seconds(absl::ToDoubleSeconds(keeper_silence_));
      // The same text at all times: it is a new warning otherwise.
      job.add_warnings(
          "the agent's process keeper does not answer: it starts, ends and reaps no process; look "
          "whether it is stopped (megascale-keep)");
    }
  }
  check_->Report(&state);
  const double seconds = absl::ToDoubleSeconds(report_interval());
  const int unasked_max = gpus_.has_gpus() ? kUnaskedBytesMax / 2 : kUnaskedBytesMax;
  CutRecent(static_cast<size_t>(seconds * unasked_max), &state);
  const size_t num_bytes = state.ByteSizeLong();
  if (num_bytes <= bytes_max) return state;
  state = alive;
  state.set_too_large_bytes(static_cast<int64_t>(num_bytes));
  return state;
}

void AgentCore::SpaceTexts(absl::Duration now, v1::ActualState* report) {
  if (!protocol::HasRecentTexts(*report)) return;
  if (now >= texts_due_) {
    texts_due_ = now + report_interval();
    return;
  }
  protocol::ClearRecentTexts(report);
}

}  // namespace megascale::agent
