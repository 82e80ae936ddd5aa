#include "controlplane/driver/core/job_index.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace megascale::driver {

bool AttemptCounts::IsCurrent(const JobRecord& job) const {
  if (attempt_ != job.attempt() || num_ranks_ != job.placements_size() ||
      num_ended_ > job.ended_size() || num_fenced_ > job.fenced_size()) {
    return false;
  }
  return num_fenced_ == 0 || job.fenced(num_fenced_ - 1).node_id() == last_fenced_;
}

void AttemptCounts::Begin(const JobRecord& job) {
  *this = AttemptCounts();
  attempt_ = job.attempt();
  num_ranks_ = num_running_ = job.placements_size();
  ended_.resize(static_cast<size_t>(num_ranks_));
  for (const auto& placement : job.placements()) ++nodes_[placement.node_id()].num_running;
}

void AttemptCounts::TakeEnded(const JobRecord& job, int rank) {
  if (rank >= 0 && rank < num_ranks_) ended_[static_cast<size_t>(rank)] = true;
  const auto node = nodes_.find(NodeOfRank(job, rank));
  if (node == nodes_.end()) return;
  --node->second.num_running;
  if (!node->second.fenced) --num_running_;
}

void AttemptCounts::TakeFenced(const std::string& node_id) {
  const auto node = nodes_.find(node_id);
  if (node == nodes_.end() || node->second.fenced) return;
  node->second.fenced = true;
  num_running_ -= node->second.num_running;
  if (node->second.lives) --num_unfenced_;
}

void AttemptCounts::CatchUp(const JobRecord& job) {
  if (!IsCurrent(job)) Begin(job);
  for (; num_ended_ < job.ended_size(); ++num_ended_) {
    TakeEnded(job, job.ended(num_ended_).rank());
  }
  for (; num_fenced_ < job.fenced_size(); ++num_fenced_) {
    last_fenced_ = job.fenced(num_fenced_).node_id();
    TakeFenced(last_fenced_);
  }
}

int AttemptCounts::NumRunning(const JobRecord& job) {
  CatchUp(job);
  return num_running_;
}

bool AttemptCounts::HasEnded(const JobRecord& job, int rank) {
  CatchUp(job);
  return rank >= 0 && rank < num_ranks_ && ended_[static_cast<size_t>(rank)];
}

int AttemptCounts::NumUnfenced(const DriverState& state, const JobRecord& job,
                               int64_t node_changes) {
  CatchUp(job);
  if (IsFencedEverywhere(state, job)) {  // on other nodes, too; rare
    return static_cast<int>(UnfencedNodesOf(state, job).size());
  }
  if (node_changes_ == node_changes) return num_unfenced_;
  node_changes_ = node_changes;
  num_unfenced_ = 0;
  for (auto& [node_id, node] : nodes_) {
    const NodeRecord* record = FindNode(state, node_id);
    node.lives = record != nullptr && record->alive();
    num_unfenced_ += node.lives && !node.fenced ? 1 : 0;
  }
  return num_unfenced_;
}

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

int JobIndex::NumUnfenced(const DriverState& state, const JobRecord& job) const {
  const auto place = static_cast<size_t>(PlaceOf(JobId(job)));
  return entries_[place].counts.NumUnfenced(state, job, node_changes_);
}

int JobIndex::NumRunning(const JobRecord& job) const {
  return entries_[static_cast<size_t>(PlaceOf(JobId(job)))].counts.NumRunning(job);
}

bool JobIndex::HasEnded(const JobRecord& job, int rank) const {
  return entries_[static_cast<size_t>(PlaceOf(JobId(job)))].counts.HasEnded(job, rank);
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

JobIndex::Touched JobIndex::TakeTouched() {
  ++num_looks_;
  return std::exchange(news_, {});
}

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
    NoteNodes(&entry);
    entry.noted = -1;
    entry.attempt = job.attempt();
    entry.num_ranks = job.placements_size();
    entry.holds = holds;
    if (!holds) entry.counts = AttemptCounts();
    entry.nodes = holds ? NodesOf(job) : std::vector<std::string>();
    for (const std::string& node_id : entry.nodes) on_node_[node_id].insert(place);
  }
  NoteNodes(&entry);
}

// A job of thousands of ranks ends in as many events: its nodes are noted once for each look.
void JobIndex::NoteNodes(Entry* entry) {
  if (entry->noted == num_looks_) return;
  entry->noted = num_looks_;
  news_.nodes.insert(entry->nodes.begin(), entry->nodes.end());
  num_noted_ += static_cast<int64_t>(entry->nodes.size());
}

}  // namespace megascale::driver
