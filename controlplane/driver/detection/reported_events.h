// Turns agents' reports into events: preflights, progress, stored shards and manifests, ends and
// failures of ranks, fences. Reports are level-triggered and repeat, so every call compares them
// with the core's state and returns only the events that the state does not have yet. The failure
// detector finds what no agent reports, because a rank hangs or an agent is silent.
// Threads: one at a time. Open agent_monitor.h first.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/detection/agent_reports.h"

namespace megascale::driver {

// Returns RankFailed of the job's present attempt, noticed `failure.age_seconds` ago. `rank`: -1
// for the node or its host process.
Event RankFailedEvent(const JobRecord& job, int rank, const std::string& node_id,
                      const megascale::agent::v1::RankFailure& failure,
                      const AgentReports& reports);

class ReportedEvents {
 public:
  // Notes the newest step in a job's loss log, for AttemptProgressed.
  void NoteStep(const std::string& job_id, int64_t step) { newest_step_[job_id] = step; }
  void Forget(const std::string& job_id) {
    newest_step_.erase(job_id);
    laggards_.erase(job_id);
  }

  // Returns the events that follow from the newest report of a living node, in the order in which
  // they must be applied: progress, checkpoints, ends, failures, fences.
  // Requires: AgentReports::TakeReport took `report` before, and nothing since.
  std::vector<Event> EventsOf(const IndexedState& state, const NodeRecord& node,
                              const megascale::agent::v1::ActualState& report,
                              const AgentReports& reports) const;

  // Appends AttemptProgressed with the newest step, if the job has not been credited with it yet.
  // It must precede every event that ends an attempt.
  void AddProgress(const JobRecord& job, std::vector<Event>* events) const;

  // Appends PreflightRefused for a machine that waits for its storage, if the job has room on other
  // machines. A job moves for that a few times only: storage may be away everywhere.
  void AddStorageAway(const DriverState& state, const JobRecord& job, const AgentReports& reports,
                      std::vector<Event>* events) const;
  // Appends RetentionEnded once all older checkpoints of a job that is otherwise over are deleted.
  // Call on ticks, because ranks on other nodes may end after the report about retention.
  void AddRetentionEnded(const DriverState& state, const JobRecord& job,
                         const AgentReports& reports, std::vector<Event>* events) const;

 private:
  std::vector<Event> EventsOfJob(const JobRecord& job, const NodeRecord& node,
                                 const megascale::agent::v1::ActualJob& report,
                                 const AgentReports& reports, const JobIndex& index) const;

  // The nodes at which the last searches stopped because a rank there was behind; empty: no search
  // has stopped so. The next search begins at that node, because a search of thousands of nodes for
  // each report would take too long.
  struct Laggards {
    std::string begins;                     // a rank there has not reached the phase
    std::map<int64_t, std::string> stores;  // by step: a shard there is not stored
  };
  mutable std::map<std::string, Laggards> laggards_;  // by job
  std::map<std::string, int64_t> newest_step_;        // by job
};

}  // namespace megascale::driver
