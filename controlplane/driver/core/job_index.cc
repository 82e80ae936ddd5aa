#include "controlplane/driver/core/job_index.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace megascale::driver {

JobIndex::JobIndex(const DriverState& state) {
  Build(state);
  TouchOpen();
}

void JobIndex::Build(const DriverState& state) {
  place_of_.clear();
  entries_.clear();
  open_.clear();
  waiting_.clear();
  restored_.clear();
  on_node_.clear();
  for (const JobRecord& job : state.jobs()) {
    const int place = static_cast<int>(entries_.size());
    const int64_t before = entries_.empty() ? 0 : entries_.back().submitted;
    place_of_.emplace(JobId(job), place);
    entries_.emplace_back().submitted = std::max(before, job.submitted_unix_nanos());
    UpdateJob(state, place);
  }
}

int JobIndex::PlaceOf(absl::string_view job_id) const {
  const auto found = place_of_.find(std::string(job_id));
  return found == place_of_.end() ? -1 : found->second;
}

const JobRecord* JobIndex::Find(const DriverState& state, absl::string_view job_id) const {
  const int place = PlaceOf(job_id);
  return place < 0 ? nullptr : &state.jobs(place);
}

const JobIndex::Places& JobIndex::On(const std::string& node_id) const {
  static const auto* nothing = new Places();
  const auto found = on_node_.find(node_id);
  return found == on_node_.end() ? *nothing : found->second;
}

void JobIndex::Add(const DriverState& state) {
  const int place = state.jobs_size() - 1;
  MEGASCALE_CHECK(place == static_cast<int>(entries_.size()));
  const JobRecord& job = state.jobs(place);
  const int64_t before = entries_.empty() ? 0 : entries_.back().submitted;
  place_of_.emplace(JobId(job), place);
  entries_.emplace_back().submitted = std::max(before, job.submitted_unix_nanos());
  open_.insert(place);
  touched_.insert(place);
}

void JobIndex::Touch(absl::string_view job_id) {
  if (const int place = PlaceOf(job_id); place >= 0) touched_.insert(place);
}

void JobIndex::Update(const DriverState& state) {
  for (const int place : touched_) {
    news_.jobs.insert(JobId(state.jobs(place)));
    UpdateJob(state, place);
  }
  touched_.clear();
}

// The places of what was touched have moved.
void JobIndex::Removed(const DriverState& state) {
  const bool any_touched = !touched_.empty();
  touched_.clear();
  Build(state);
  if (any_touched) TouchOpen();
}

JobIndex::Touched JobIndex::TakeTouched() { return std::exchange(news_, {}); }

void JobIndex::UpdateJob(const DriverState& state, int place) {
  const JobRecord& job = state.jobs(place);
  const auto keep = [place](bool in, Places* places) {
    if (in) {
      places->insert(place);
    } else {
      places->erase(place);
    }
  };
  const bool waits =
      job.stage() == v1::STAGE_QUEUED || IsHold(job.stage()) || job.waiting_since_unix_nanos() != 0;
  keep(!IsTerminal(job), &open_);
  keep(!IsTerminal(job) && waits, &waiting_);
  keep(IsFencedEverywhere(state, job), &restored_);
  UpdateNodes(job, place);
}

// Only a new attempt places ranks again; within an attempt the placements may only be cleared.
void JobIndex::UpdateNodes(const JobRecord& job, int place) {
  Entry& entry = entries_[static_cast<size_t>(place)];
  const bool holds = HoldsSlots(job);
  if (entry.attempt != job.attempt() || entry.num_ranks != job.placements_size() ||
      entry.holds != holds) {
    for (const std::string& node_id : entry.nodes) {
      const auto found = on_node_.find(node_id);
      found->second.erase(place);
      if (found->second.empty()) on_node_.erase(found);
    }
    news_.nodes.insert(entry.nodes.begin(), entry.nodes.end());
    entry.attempt = job.attempt();
    entry.num_ranks = job.placements_size();
    entry.holds = holds;
    entry.nodes = holds ? NodesOf(job) : std::vector<std::string>();
    for (const std::string& node_id : entry.nodes) on_node_[node_id].insert(place);
  }
  news_.nodes.insert(entry.nodes.begin(), entry.nodes.end());
}

}  // namespace megascale::driver
