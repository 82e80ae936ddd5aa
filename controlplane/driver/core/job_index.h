// An index for what is looked up in the driver's state again and again: a job by its id, the jobs
// that have not ended, the jobs that wait for slots, the jobs with ranks on a node. It follows from
// the state alone, so it is not part of a log or a snapshot. Apply keeps it up to date, and notes
// which jobs an event touched, so that the other jobs need no look. Pure. Threads: one at a time,
// also in const methods, which bring kept counts up to date.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

// How many ranks of an attempt may still run, and how many nodes must still confirm that no process
// is left there. A job of thousands of ranks ends in thousands of events. So the counts are kept,
// and each call adds only the ranks that ended and the nodes that were fenced since the call
// before.
class AttemptCounts {
 public:
  // As many as UnfencedNodesOf returns. `node_changes`: grows whenever the record of a node
  // changes. Cost: one look at each node of the job, if `node_changes` is another number than in
  // the call before.
  int NumUnfenced(const DriverState& state, const JobRecord& job, int64_t node_changes);
  // Ranks that have neither ended nor are on a fenced node; 0: AllGone.
  int NumRunning(const JobRecord& job);
  // Ranks that ended by a failure.
  int NumFailed(const JobRecord& job);
  // As FindEnded, without its search of all ranks that have ended.
  bool HasEnded(const JobRecord& job, int rank);
  // As IsFenced, without its search of all fenced nodes.
  bool HasFenced(const JobRecord& job, const std::string& node_id);

  // Takes in what changed in the job. Call it after each event that changed the job. A node that
  // was removed from JobRecord.fenced is noticed if the list is shorter, or if another node stands
  // where the last counted one stood.
  void CatchUp(const JobRecord& job);
  // How many times the counts began anew, because the lists of ranks or nodes changed otherwise
  // than by new elements at their ends.
  int64_t num_begun() const { return num_begun_; }

 private:
  struct Node {
    int num_running = 0;  // of its ranks, those that have not ended
    bool fenced = false;
    bool lives = false;
  };
  bool IsCurrent(const JobRecord& job) const;
  void Begin(const JobRecord& job);
  void TakeEnded(const JobRecord& job, const v1::EndedRank& ended);
  void TakeFenced(const std::string& node_id);

  int64_t attempt_ = -1;
  int num_ranks_ = 0;          // placed
  int num_ended_ = 0;          // taken in, of JobRecord.ended
  int num_fenced_ = 0;         // taken in, of JobRecord.fenced
  std::string last_fenced_;    // the newest of them
  int64_t node_changes_ = -1;  // for which `lives` holds
  std::unordered_map<std::string, Node> nodes_;
  std::vector<bool> ended_;  // by rank
  int num_running_ = 0;
  int num_failed_ = 0;
  int num_unfenced_ = 0;  // nodes that live and are not fenced
  int64_t num_begun_ = 0;
};

class JobIndex {
 public:
  // A job's place in state.jobs(), which is in the order of submission.
  using Places = std::set<int>;

  // Every job that has not ended counts as touched.
  explicit JobIndex(const DriverState& state);

  // Returns the job's place; -1: there is no such job.
  int PlaceOf(absl::string_view job_id) const;
  // Returns the job; null: there is no such job.
  const JobRecord* Find(const DriverState& state, absl::string_view job_id) const;

  // The jobs that have not ended.
  const Places& open() const { return open_; }
  // Those open jobs that are queued or on hold, or that had to wait for slots and have made no
  // progress since then, even if they run now.
  const Places& waiting() const { return waiting_; }
  // Those open jobs that must be fenced on every node because the log was restored from a copy.
  const Places& restored() const { return restored_; }
  // Those open jobs that hold slots and have ranks on the node.
  const Places& On(const std::string& node_id) const;
  // As NodesOf of the job at this place, if it holds slots; else there are no nodes.
  const std::vector<std::string>& NodesAt(int place) const {
    return entries_[static_cast<size_t>(place)].nodes;
  }
  // The latest time of submission of the jobs up to this place. The clock may have stepped back.
  int64_t SubmittedBy(int place) const { return entries_[static_cast<size_t>(place)].submitted; }
  // As AllFenced and AllGone of driver_state.h, but from counts that are kept. Requires: `job` is
  // in `state`.
  bool AllFenced(const DriverState& state, const JobRecord& job) const {
    return NumUnfenced(state, job) == 0;
  }
  bool AllGone(const JobRecord& job) const { return NumRunning(job) == 0; }
  int NumUnfenced(const DriverState& state, const JobRecord& job) const;
  int NumRunning(const JobRecord& job) const;
  bool HasEnded(const JobRecord& job, int rank) const;
  bool HasFenced(const JobRecord& job, const std::string& node_id) const;

  // --- for Apply
  // Adds the last job of the state, which is new.
  void Add(const DriverState& state);
  // TouchNode notes that this node's record changes; TouchNodes, that the record of any node may
  // change.
  void TouchNode(const std::string& node_id) {
    news_.node_records.insert(node_id);
    ++node_changes_;
  }
  void TouchNodes() {
    news_.all_node_records = true;
    ++node_changes_;
  }
  // Call when records of nodes have changed, before counts that depend on them are asked for again.
  void NoteNodesChanged() { ++node_changes_; }
  // Notes that the job changes, or may do so.
  void Touch(int place) { touched_.insert(place); }
  void Touch(absl::string_view job_id);
  void TouchOpen() { touched_.insert(open_.begin(), open_.end()); }
  // Notes that a rank of a job failed on the node, or that the job was fenced there.
  void NoteNode(const std::string& node_id) { news_.nodes.insert(node_id); }
  // The jobs that the present event touches.
  const Places& touched() const { return touched_; }
  // Ends an event: takes over what the event changed in the jobs that it touched.
  void Update(const DriverState& state);
  // Takes over a state from which jobs were removed.
  void Removed(const DriverState& state);
  // Counts the jobs whose stage an event looked at (Transition::Settle), whether it changed or not.
  void NoteSettled(size_t num_jobs) { num_settled_ += static_cast<int64_t>(num_jobs); }
  // Notes that elements of the lists that ListsOf names change in place.
  void TouchLists(const JobRecord& job);

  // --- for Apply: placing the jobs that wait. A placement looks at all nodes and jobs, so its
  // decision is kept for as long as nothing changes that it depends on.
  struct Placed {
    // Between these times the ages of the waiting jobs lead to the same decision; `until` is
    // excluded.
    int64_t from_unix_nanos = 0;
    int64_t until_unix_nanos = 0;
    int refused = -1;         // the place of a queued job for which there are no slots
    std::string why_refused;  // for people
  };
  enum class Change { kNothing, kQueue, kSlots };
  // Returns what has changed since NotePlaced. kQueue: only jobs that are queued now or were queued
  // before. Call it before the jobs that wait are placed.
  Change ChangeSincePlaced(const DriverState& state, int64_t now_unix_nanos) const;
  // Returns why there are no slots for a queued job; null: not known, the job must be tried.
  // Requires: ChangeSincePlaced returned kQueue.
  const std::string* WhyRefused(int place) const;
  // Ends a placement that began no attempt.
  void NotePlaced(const DriverState& state, Placed placed);
  // Ends a placement that began an attempt. What was kept of it is dropped, because the free slots
  // are not the same any more.
  void NoteAttemptBegun() { placed_.reset(); }
  // Counts a look for slots for a job.
  void NotePlacementTry() { ++num_placement_tries_; }

  // --- for the users of Apply
  // What events have touched since the last call.
  struct Touched {
    std::set<std::string> jobs;          // ids
    std::set<std::string> nodes;         // where these got or lost ranks, or as NoteNode says
    std::set<std::string> node_records;  // that may have changed
    bool all_node_records = false;       // any of them may have changed
  };
  Touched TakeTouched();
  // Returns what NoteSettled counted, summed over all events.
  int64_t num_settled() const { return num_settled_; }
  // Returns how many nodes were noted because jobs began or ceased to hold slots there, summed over
  // all events; NoteNode does not count.
  int64_t num_noted() const { return num_noted_; }
  // Returns how many times Apply looked for slots for a job, summed over all events.
  int64_t num_placement_tries() const { return num_placement_tries_; }
  // Returns a number that stays the same for as long as the placements of a job that holds slots
  // stay the same, and elements are only added at the ends of its lists of preflights, ended ranks
  // and fenced nodes. No other job ever has it. 0: there is no such job.
  int64_t ListsOf(absl::string_view job_id) const;

 private:
  // What the placement of other jobs depends on.
  struct Claim {
    v1::Stage stage = v1::STAGE_UNSPECIFIED;  // RUN for all stages in which processes may run
    int64_t attempt = 0;
    int num_ranks = 0;  // placed
    int num_fenced = 0;
    bool is_cancelled = false;
    bool operator==(const Claim&) const = default;
  };
  struct Entry {
    int64_t submitted = 0;
    int64_t attempt = -1;
    int num_ranks = 0;
    bool holds = false;
    std::vector<std::string> nodes;  // while it holds slots
    Claim claim;
    int num_gone = 0;   // NumGone
    int64_t lists = 0;  // ListsOf
    int64_t begun = 0;  // AttemptCounts::num_begun
    mutable AttemptCounts counts;
  };
  static Claim ClaimOf(const JobRecord& job);
  Change ChangeOf(const JobRecord& job, const Entry& entry) const;
  // Returns a number that grows when fewer nodes are busy with the processes of the job, which
  // holds slots.
  static int NumGone(const JobRecord& job, const Entry& entry);
  void Build(const DriverState& state);
  void UpdateJob(const DriverState& state, int place);
  void UpdateNodes(const JobRecord& job, int place);
  void UpdateLists(const JobRecord& job, Entry* entry);
  void NoteNodes(const Entry& entry);

  std::unordered_map<std::string, int> place_of_;
  std::vector<Entry> entries_;  // by place
  Places open_;
  Places waiting_;
  Places restored_;
  std::unordered_map<std::string, Places> on_node_;
  Places touched_;
  std::optional<Placed> placed_;
  int64_t placed_node_changes_ = 0;  // node_changes_ at that time
  bool tests_due_ = false;           // at that time: tests wait for processes of jobs to end
  Touched news_;
  int64_t node_changes_ = 0;
  int64_t num_settled_ = 0;
  int64_t num_noted_ = 0;
  int64_t num_placement_tries_ = 0;
  int64_t num_lists_ = 0;
};

// A state and its index, for reading.
class IndexedState {
 public:
  // Both outlive the object.
  IndexedState(const DriverState& state, const JobIndex& index) : state_(state), index_(index) {}
  // Makes an index. Cost: looks at all jobs.
  IndexedState(const DriverState& state)  // NOLINT(google-explicit-constructor): it is the state
      : state_(state), own_(state), index_(*own_) {}
  IndexedState(const IndexedState&) = delete;

  const DriverState& state() const { return state_; }
  const JobIndex& index() const { return index_; }
  const JobRecord* Find(absl::string_view job_id) const { return index_.Find(state_, job_id); }

 private:
  const DriverState& state_;
  const std::optional<JobIndex> own_;
  const JobIndex& index_;
};

}  // namespace megascale::driver
