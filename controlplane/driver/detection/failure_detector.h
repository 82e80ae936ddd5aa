// Finds by timeouts what no agent reports: silent nodes and hung ranks. Pure; time comes from
// AgentReports.
// A node is lost when it is silent for longer than the driver's node timeout; a broken stream alone
// does not make it lost. A job's limits decide about its own ranks and never about a node, because
// a node may have ranks of other jobs, too. A driver that starts gives every node one node timeout
// to report. Threads: one at a time. Open agent_monitor.h first. See
// docs/how-a-failure-is-handled.md.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/detection/agent_reports.h"

namespace megascale::driver {

class FailureDetector {
 public:
  // Default, minimum and maximum of the node timeout. Agents report every second, or more often
  // where a job asks for it.
  static constexpr absl::Duration kNodeTimeout = absl::Seconds(5);
  static constexpr absl::Duration kNodeTimeoutMin = absl::Seconds(2);
  static constexpr absl::Duration kNodeTimeoutMax = absl::Hours(1);

  // Returns NodeLost for every living node that has been silent for longer than the node timeout.
  std::vector<Event> LostNodes(const DriverState& state, const AgentReports& reports);

  // Returns a RankFailed for each limit of the job that is exceeded now: checkpoint_timeout (writes
  // fail), start_timeout, and heartbeat_timeout or progress_timeout (a rank is silent or makes no
  // progress; only the rank to blame gets an event). Call several times per second.
  std::vector<Event> FailuresOf(const JobRecord& job, const AgentReports& reports);

  // Notes that an agent that has ranks of the job has reported.
  void OnReport(const std::string& job_id);
  // Forgets a job that has ended.
  void Forget(const std::string& job_id);

  // For each job whose checkpoint writes fail, returns when the failures began: the time of the
  // first failure after the last success that this driver knows of, on the clock
  // AgentReports::awake.
  std::map<std::string, absl::Duration> StorageFailures() const;

 private:
  // A rank whose timer thread stopped or that makes no progress.
  struct Suspect {
    int rank = 0;
    std::string node_id;
    std::string evidence;
    bool dead = false;     // its timer thread stopped
    bool waiting = false;  // it waits for peers, so one of them may be the cause
    absl::Duration age = absl::ZeroDuration();
  };
  struct Watched {  // a value, such as a job's stage or a rank's phase, and since when it holds
    int64_t value = 0;
    absl::Duration since = absl::ZeroDuration();
  };

  // What was found in a node's newest report. The report is looked at again once the result may
  // differ.
  struct Look {
    std::string node_id;
    std::shared_ptr<const megascale::agent::v1::ActualState> report;
    const megascale::agent::v1::ActualJob* job = nullptr;  // null: nothing of the present attempt
    absl::Duration heard = absl::ZeroDuration();           // in awake time
    bool punctual = false;
    absl::Duration calm_until = absl::ZeroDuration();  // in awake time: no rank is a suspect before
  };
  struct Looks {
    int64_t attempt = -1;
    std::vector<Look> nodes;   // of the job, in their order
    int64_t stage_event = -1;  // of the job when FailuresOf looked
    // In awake time: no limit is exceeded before, unless the job's stage changes or an agent
    // reports.
    absl::Duration calm_until = -absl::InfiniteDuration();
  };

  // Renews the looks at the job's nodes whose agents have reported since.
  static void LookAt(const JobRecord& job, const AgentReports& reports, Looks* looks);
  // Returns Looks::calm_until of a running job none of whose limits is exceeded.
  absl::Duration CalmUntil(const JobRecord& job, const Looks& looks, absl::Duration awake) const;
  // Returns for how long `key` has had this value.
  static absl::Duration Since(std::map<std::string, Watched>* watched, const std::string& key,
                              int64_t value, const AgentReports& reports);
  // `is_cause_ahead` is set if a rank that does not wait for peers reports that it has made no
  // progress for longer than its limit, but this driver has seen the rank in its phase for a
  // shorter time than that. Once it has seen it there for longer, the rank is a suspect.
  std::vector<Suspect> SuspectsOf(const JobRecord& job, absl::Duration awake,
                                  std::vector<Look>* looks, bool* is_cause_ahead);
  // Adds the suspects on one node, and notes in `look` until when there can be no other suspect.
  void AddSuspects(const JobRecord& job, absl::Duration awake, std::vector<Watched>* phases,
                   Look* look, std::vector<Suspect>* suspects, bool* is_cause_ahead);
  // `is_alive`: its timer thread runs. `still`: for how long the rank has made no progress;
  // `limit`: for how long it may.
  static std::optional<Suspect> SuspectOf(const megascale::telemetry::v1::RankStatus& status,
                                          bool is_alive, absl::Duration still,
                                          absl::Duration limit);
  // Return the job's failure of this kind.
  std::optional<Event> StorageFailed(const JobRecord& job, const AgentReports& reports,
                                     const std::vector<Look>& looks);
  std::optional<Event> Hung(const JobRecord& job, const AgentReports& reports,
                            std::vector<Look>* looks);
  std::optional<Event> Overdue(const JobRecord& job, const AgentReports& reports,
                               const std::vector<Look>& looks);

  // In awake time: no agent has been silent for too long before.
  absl::Duration none_lost_until_ = -absl::InfiniteDuration();
  std::map<std::string, Watched> stages_;               // by job
  std::map<std::string, std::vector<Watched>> phases_;  // by job, then by rank
  std::map<std::string, Looks> looks_;                  // by job
  std::map<std::string, Watched> storage_;  // by job: newest commit, and since when writes fail
};

}  // namespace megascale::driver
