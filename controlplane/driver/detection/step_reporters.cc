#include "controlplane/driver/detection/step_reporters.h"

#include <algorithm>
#include <utility>

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

StepReporters::Keepers StepReporters::KeepersOf(const JobRecord& job) {
  const int num_ranks = job.placements_size();
  if (num_ranks == 0) return {};
  const int stages = std::max(1, job.submitted().spec().parallel().pipeline_model_parallel_size());
  const int first_rank = num_ranks - num_ranks / stages;  // ranks are ordered by stage
  Keepers keepers;
  keepers.first = NodeOfRank(job, std::min(first_rank, num_ranks - 1));
  for (int i = 1; i < num_ranks && keepers.deputy.empty(); ++i) {
    const std::string& node_id = job.placements((first_rank + i) % num_ranks).node_id();
    if (node_id != keepers.first) keepers.deputy = node_id;
  }
  return keepers;
}

StepReporters::Entry& StepReporters::EntryOf(const JobRecord& job) {
  Entry& entry = jobs_[JobId(job)];
  if (entry.attempt == job.attempt() && entry.num_ranks == job.placements_size()) return entry;
  if (entry.attempt != job.attempt()) {
    entry.completed = 0;
    const bool is_known = entry.attempt >= 0;  // else what is noted is of this attempt
    entry.reported = std::max(is_known ? 0 : entry.reported, job.restore().step());
    entry.waiting_since = absl::InfiniteDuration();
  }
  entry.attempt = job.attempt();
  entry.num_ranks = job.placements_size();
  const Keepers keepers = KeepersOf(job);
  if (entry.keepers != keepers) entry.deputy_reports = false;
  entry.keepers = keepers;
  return entry;
}

void StepReporters::OnReport(const JobRecord& job, const std::string& node_id,
                             const agent::ActualJob& report, absl::Duration awake) {
  Entry& entry = EntryOf(job);
  if (report.steps().empty()) {
    entry.nodes_with_steps.erase(node_id);
  } else {
    entry.nodes_with_steps.insert(node_id);
  }
  if (report.attempt() != job.attempt()) return;
  for (const auto& rank : report.ranks()) {
    entry.completed = std::max(entry.completed, rank.status().step());
  }
  // More than its log takes now, perhaps: then the reporter is not to blame.
  if (!report.steps().empty()) {
    const auto& newest = *report.steps().rbegin();
    if (newest.attempt() == job.attempt() && newest.step() > entry.reported) {
      NoteStep(JobId(job), newest.step());
    }
  }
  if (entry.completed <= entry.reported) {
    entry.waiting_since = absl::InfiniteDuration();
  } else {
    entry.waiting_since = std::min(entry.waiting_since, awake);
  }
}

void StepReporters::NoteStep(const std::string& job_id, int64_t step) {
  Entry& entry = jobs_[job_id];
  if (step > entry.reported) entry.waiting_since = absl::InfiniteDuration();  // it goes on
  entry.reported = step;
}

void StepReporters::OnTick(const IndexedState& state, absl::Duration awake) {
  for (auto& [job_id, entry] : jobs_) {
    if (awake - entry.waiting_since <= kLagMax || entry.completed <= entry.reported) continue;
    const JobRecord* job = state.Find(job_id);
    if (job == nullptr || job->attempt() != entry.attempt || entry.keepers.deputy.empty()) continue;
    if (job->stage() != pb::STAGE_RUN && !StopsAtStep(*job)) continue;
    entry.deputy_reports = !entry.deputy_reports;
    entry.waiting_since = awake;  // the other one has as long
    changed_.insert({entry.keepers.first, entry.keepers.deputy});
  }
}

agent::StepDuty StepReporters::DutyOf(const JobRecord& job, const std::string& node_id) {
  const Entry& entry = EntryOf(job);
  if (node_id == entry.keepers.first) {
    return entry.deputy_reports ? agent::STEP_DUTY_KEEP : agent::STEP_DUTY_REPORT;
  }
  if (node_id != entry.keepers.deputy) return agent::STEP_DUTY_NONE;
  return entry.deputy_reports ? agent::STEP_DUTY_REPORT : agent::STEP_DUTY_KEEP;
}

std::set<std::string> StepReporters::NodesWithSteps(const JobRecord& job) {
  const Entry& entry = EntryOf(job);
  std::set<std::string> nodes = entry.nodes_with_steps;
  for (const std::string& keeper : {entry.keepers.first, entry.keepers.deputy}) {
    if (!keeper.empty()) nodes.insert(keeper);
  }
  return nodes;
}

bool StepReporters::HasSteps(const JobRecord& job, const std::string& node_id) {
  const Entry& entry = EntryOf(job);
  return node_id == entry.keepers.first || node_id == entry.keepers.deputy ||
         entry.nodes_with_steps.count(node_id) > 0;
}

std::set<std::string> StepReporters::TakeChanged() { return std::exchange(changed_, {}); }

}  // namespace megascale::driver
