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
  const int64_t num_begun = num_begun_ + 1;
  *this = AttemptCounts();
  num_begun_ = num_begun;
  attempt_ = job.attempt();
  num_ranks_ = num_running_ = job.placements_size();
  ended_.resize(static_cast<size_t>(num_ranks_));
  for (const auto& placement : job.placements()) ++nodes_[placement.node_id()].num_running;
}

void AttemptCounts::TakeEnded(const JobRecord& job, const v1::EndedRank& ended) {
  const int rank = ended.rank();
  if (ended.failed()) ++num_failed_;
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
    TakeEnded(job, job.ended(num_ended_));
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

int AttemptCounts::NumFailed(const JobRecord& job) {
  CatchUp(job);
  return num_failed_;
}

bool AttemptCounts::HasEnded(const JobRecord& job, int rank) {
  CatchUp(job);
  // Only an event of a faulty agent names a rank that is not placed.
  if (rank < 0 || rank >= num_ranks_) return FindEnded(job, rank) != nullptr;
  return ended_[static_cast<size_t>(rank)];
}

bool AttemptCounts::HasFenced(const JobRecord& job, const std::string& node_id) {
  CatchUp(job);
  const auto node = nodes_.find(node_id);
  return node == nodes_.end() ? IsFenced(job, node_id) : node->second.fenced;
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

bool JobIndex::HasFenced(const JobRecord& job, const std::string& node_id) const {
  return entries_[static_cast<size_t>(PlaceOf(JobId(job)))].counts.HasFenced(job, node_id);
}

int64_t JobIndex::ListsOf(absl::string_view job_id) const {
  const int place = PlaceOf(job_id);
  return place < 0 ? 0 : entries_[static_cast<size_t>(place)].lists;
}

void JobIndex::TouchLists(const JobRecord& job) {
  const int place = PlaceOf(JobId(job));
  touched_.insert(place);
  entries_[static_cast<size_t>(place)].lists = ++num_lists_;
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
  placed_.reset();
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
  Entry& entry = entries_[static_cast<size_t>(place)];
  UpdateLists(job, &entry);
  entry.claim = ClaimOf(job);
  entry.num_gone = entry.holds ? NumGone(job, entry) : 0;
}

void JobIndex::UpdateLists(const JobRecord& job, Entry* entry) {
  if (entry->holds) entry->counts.CatchUp(job);
  if (entry->lists != 0 && entry->begun == entry->counts.num_begun()) return;
  entry->begun = entry->counts.num_begun();
  entry->lists = ++num_lists_;
}

// Only a new attempt places ranks again; within an attempt the placements may only be cleared.
void JobIndex::UpdateNodes(const JobRecord& job, int place) {
  Entry& entry = entries_[static_cast<size_t>(place)];
  const bool holds = HoldsSlots(job);
  if (entry.attempt == job.attempt() && entry.num_ranks == job.placements_size() &&
      entry.holds == holds) {
    return;
  }
  for (const std::string& node_id : entry.nodes) {
    const auto found = on_node_.find(node_id);
    found->second.erase(place);
    if (found->second.empty()) on_node_.erase(found);
  }
  NoteNodes(entry);
  entry.attempt = job.attempt();
  entry.num_ranks = job.placements_size();
  entry.holds = holds;
  if (!holds) entry.counts = AttemptCounts();
  entry.nodes = holds ? NodesOf(job) : std::vector<std::string>();
  for (const std::string& node_id : entry.nodes) on_node_[node_id].insert(place);
  NoteNodes(entry);
}

void JobIndex::NoteNodes(const Entry& entry) {
  news_.nodes.insert(entry.nodes.begin(), entry.nodes.end());
  num_noted_ += static_cast<int64_t>(entry.nodes.size());
}

// --- placement ----------------------------------------------------------------------------------

JobIndex::Claim JobIndex::ClaimOf(const JobRecord& job) {
  Claim claim;
  const bool may_run = HoldsSlots(job) && !IsHold(job.stage());
  claim.stage = may_run ? v1::STAGE_RUN : job.stage();
  if (!HoldsSlots(job)) return claim;
  claim.attempt = job.attempt();
  claim.num_ranks = job.placements_size();
  if (may_run) return claim;
  claim.is_cancelled = job.has_cancel();
  // Until it is fenced, a job neither waits for slots nor gives any.
  if (job.stage() != v1::STAGE_FENCE) claim.num_fenced = job.fenced_size();
  return claim;
}

int JobIndex::NumGone(const JobRecord& job, const Entry& entry) {
  return job.fenced_size() + entry.counts.NumFailed(job);
}

JobIndex::Change JobIndex::ChangeOf(const JobRecord& job, const Entry& entry) const {
  const v1::Stage before = entry.claim.stage;
  const bool was_queued = before == v1::STAGE_QUEUED || before == v1::STAGE_UNSPECIFIED;
  if (was_queued && !HoldsSlots(job)) return Change::kQueue;
  // All that such a job is placed by may have changed.
  if (job.stage() == v1::STAGE_WAIT_FOR_SLOTS || ClaimOf(job) != entry.claim) {
    return Change::kSlots;
  }
  const bool may_free_node = tests_due_ && HoldsSlots(job) && NumGone(job, entry) != entry.num_gone;
  return may_free_node ? Change::kSlots : Change::kNothing;
}

JobIndex::Change JobIndex::ChangeSincePlaced(const DriverState& state,
                                             int64_t now_unix_nanos) const {
  if (!placed_.has_value() || placed_node_changes_ != node_changes_ ||
      now_unix_nanos < placed_->from_unix_nanos || now_unix_nanos >= placed_->until_unix_nanos) {
    return Change::kSlots;
  }
  Change change = Change::kNothing;
  for (const int place : touched_) {
    change = std::max(change, ChangeOf(state.jobs(place), entries_[static_cast<size_t>(place)]));
  }
  return change;
}

const std::string* JobIndex::WhyRefused(int place) const {
  const bool is_known = placed_->refused == place && touched_.count(place) == 0;
  return is_known ? &placed_->why_refused : nullptr;
}

void JobIndex::NotePlaced(const DriverState& state, Placed placed) {
  placed_ = std::move(placed);
  placed_node_changes_ = node_changes_;
  tests_due_ = std::any_of(state.nodes().begin(), state.nodes().end(), IsTestDue);
}

}  // namespace megascale::driver
