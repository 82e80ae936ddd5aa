// What is looked up in the driver's state again and again: a job by its id, the jobs that have not
// ended, those that wait for slots, those with ranks on a node. It follows from the state alone, so
// it is no part of a log or a snapshot. Apply keeps it up to date, and notes which jobs an event
// touched, so that nothing looks at the others. Pure. Threads: plain objects.
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
  // Those of them that are queued, hold or have waited for slots since their last progress.
  const Places& waiting() const { return waiting_; }
  // Those of them that are fenced on every node because the log was restored from a copy.
  const Places& restored() const { return restored_; }
  // Those of them that hold slots and have ranks on the node.
  const Places& On(const std::string& node_id) const;
  // The latest time of submission of the jobs up to this place. The clock may have stepped back.
  int64_t SubmittedBy(int place) const { return entries_[static_cast<size_t>(place)].submitted; }

  // --- for Apply
  // Adds the last job of the state, which is new.
  void Add(const DriverState& state);
  // Notes that a node's record changes, or that any of them may do so.
  void TouchNode(const std::string& node_id) { news_.node_records.insert(node_id); }
  void TouchNodes() { news_.all_node_records = true; }
  // Notes that the job changes, or may do so.
  void Touch(int place) { touched_.insert(place); }
  void Touch(absl::string_view job_id);
  void TouchOpen() { touched_.insert(open_.begin(), open_.end()); }
  // The jobs that the present event touches.
  const Places& touched() const { return touched_; }
  // Ends an event: takes over what it changed in the jobs that it touched.
  void Update(const DriverState& state);
  // Takes over a state from which jobs were removed.
  void Removed(const DriverState& state);
  // Counts the jobs that an event settled.
  void NoteSettled(size_t num_jobs) { num_settled_ += static_cast<int64_t>(num_jobs); }

  // --- for the users of Apply
  // What events have touched since the last call.
  struct Touched {
    std::set<std::string> jobs;          // ids
    std::set<std::string> nodes;         // on which these have, or had, ranks
    std::set<std::string> node_records;  // that may have changed
    bool all_node_records = false;       // any of them may have changed
  };
  Touched TakeTouched();
  // Returns how many jobs all events together settled.
  int64_t num_settled() const { return num_settled_; }

 private:
  struct Entry {
    int64_t submitted = 0;
    int64_t attempt = -1;
    int num_ranks = 0;
    bool holds = false;
    std::vector<std::string> nodes;  // while it holds slots
  };
  void Build(const DriverState& state);
  void UpdateJob(const DriverState& state, int place);
  void UpdateNodes(const JobRecord& job, int place);

  std::unordered_map<std::string, int> place_of_;
  std::vector<Entry> entries_;  // by place
  Places open_;
  Places waiting_;
  Places restored_;
  std::unordered_map<std::string, Places> on_node_;
  Places touched_;
  Touched news_;
  int64_t num_settled_ = 0;
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
