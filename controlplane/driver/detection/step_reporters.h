// Which agents of a job keep its step records, and which of these agents reports them. All ranks
// make the same records, so two agents are enough: the agent of the first rank of the last pipeline
// stage, and its deputy, the agent of the next node in the order of ranks. The placement alone
// determines both, so every driver names the same two for an attempt. This class decides which of
// the two reports. The decision is not logged, because both agents have all records that are not
// acknowledged.
// The other agent takes over when ranks have completed steps that the reporter does not report for
// kLagMax. The reason does not matter: the reporter may be stopped, cut off or busy, or its machine
// may be lost. Reports come at least once a second, so steps are never held up for more than 2 s by
// one agent. Threads: one at a time. Open agent_monitor.h first.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/detection/agent_reports.h"

namespace megascale::driver {

class StepReporters {
 public:
  static constexpr absl::Duration kLagMax = absl::Milliseconds(600);

  // The nodes whose agents keep the step records of an attempt.
  struct Keepers {
    std::string first;   // reports, to begin with; empty: the job has no ranks
    std::string deputy;  // empty: all ranks are on one node
    bool operator==(const Keepers&) const = default;
  };
  static Keepers KeepersOf(const JobRecord& job);

  // Takes a report of an agent that has ranks of the job.
  void OnReport(const JobRecord& job, const std::string& node_id,
                const megascale::agent::v1::ActualJob& report, absl::Duration awake);
  // Notes the newest step that needs no report any more. After a rollback this is a lower step.
  void NoteStep(const std::string& job_id, int64_t step);
  // If the agent that should report a job's steps does not, lets the job's other agent report.
  // `awake`: as AgentReports::awake.
  void OnTick(const IndexedState& state, absl::Duration awake);

  megascale::agent::v1::StepDuty DutyOf(const JobRecord& job, const std::string& node_id);
  // Returns the nodes whose agents have step records of the job: these need acknowledgements. An
  // agent of a version without duties reports its records, too.
  std::set<std::string> NodesWithSteps(const JobRecord& job);
  bool HasSteps(const JobRecord& job, const std::string& node_id);
  // Returns the nodes whose duty has changed since the last call.
  std::set<std::string> TakeChanged();

  void Forget(const std::string& job_id) { jobs_.erase(job_id); }

 private:
  struct Entry {
    int64_t attempt = -1;
    int num_ranks = 0;  // placed when `keepers` was made
    Keepers keepers;
    bool deputy_reports = false;
    int64_t completed = 0;  // newest step that a rank has completed, in this attempt
    int64_t reported = 0;   // newest step that came in a report or is in the loss log
    // Since when, in awake time, steps wait to be reported; infinite: none waits.
    absl::Duration waiting_since = absl::InfiniteDuration();
    std::set<std::string> nodes_with_steps;  // by their newest reports
  };
  Entry& EntryOf(const JobRecord& job);

  std::map<std::string, Entry> jobs_;
  std::set<std::string> changed_;
};

}  // namespace megascale::driver
