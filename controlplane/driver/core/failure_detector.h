// Turns the agents' reports, and time, into verdicts: the events that the driver logs. Pure: time
// comes in as an argument. Reports are level-triggered and repeat, so every call compares them with
// the core's state and returns only events that are news to it.
//
// A node is lost when it is silent for the driver's node timeout; a broken stream alone is no
// reason. A job's limits decide about its own ranks and never about a node, because a node may have
// ranks of other jobs, too. A gap between two calls counts for at most `kStallMax`, so that a
// driver that stalled does not take its nodes for lost. A driver that starts gives every node one
// node timeout to report. Source: DESIGN sections 1.3 and 9 (Liveness).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_core.h"

namespace megascale::driver {

class FailureDetector {
 public:
  // A longer gap between two calls means that the driver itself stalled.
  static constexpr absl::Duration kStallMax = absl::Seconds(1);
  // Default, minimum and maximum of `node_timeout`. Agents report every second, or more often where
  // a job asks for it.
  static constexpr absl::Duration kNodeTimeout = absl::Seconds(5);
  static constexpr absl::Duration kNodeTimeoutMin = absl::Seconds(2);
  static constexpr absl::Duration kNodeTimeoutMax = absl::Hours(1);

  // `now`: monotonic time at which the driver began to listen; nodes have until `now` +
  // `node_timeout` to report.
  explicit FailureDetector(absl::Duration now, absl::Duration node_timeout = kNodeTimeout)
      : node_timeout_(node_timeout), last_call_(now) {}

  // Takes over an agent that connected and may join (CheckJoin), with this certificate. Returns
  // NodeJoined when this incarnation or its certificate is new, or when the node was lost.
  std::vector<Event> OnHello(const DriverState& state, const megascale::agent::v1::Hello& hello,
                             absl::Duration now, const std::string& certificate = "");

  // Returns the events that follow from an agent's report, in the order in which they must be
  // applied: progress, checkpoints, ends, failures, fences. A report is ignored unless its
  // incarnation is the one in the state.
  std::vector<Event> OnReport(const DriverState& state, const std::string& node_id,
                              const megascale::agent::v1::ActualState& report, absl::Duration now);

  // Returns the events that follow from the passing of time. Call several times per second.
  std::vector<Event> OnTick(const DriverState& state, absl::Duration now);

  // Notes the newest step in a job's loss log, for AttemptProgressed. Call before OnReport.
  void NoteStep(const std::string& job_id, int64_t step) { newest_step_[job_id] = step; }

  // Returns a node's newest report about a job; null: its present incarnation has not reported it.
  const megascale::agent::v1::ActualJob* LastReport(const std::string& node_id,
                                                    const std::string& job_id) const;

  // Returns the time from the first failed checkpoint write after the last success to the last
  // tick; zero: checkpoints can be written. Starts from zero when the driver starts.
  absl::Duration StorageFailsFor(const std::string& job_id) const;

  // Returns the time since the node's last report, or since the start of the driver.
  absl::Duration SilenceOf(const std::string& node_id) const;

  // Returns the contact with a node's agent, judged by its reports alone.
  Contact ContactWith(const std::string& node_id) const;

 private:
  struct Node {
    megascale::agent::v1::Hello hello;
    megascale::agent::v1::ActualState report;
    absl::Duration heard = absl::ZeroDuration();  // in awake time
    bool punctual = false;  // the newest report came soon after the one before it
  };
  // A rank whose timer thread stopped or that makes no progress.
  struct Suspect {
    int rank = 0;
    std::string node_id;
    std::string evidence;
    bool dead = false;     // its timer thread stopped
    bool waiting = false;  // it is in a collective, so a peer may be the cause
    absl::Duration age = absl::ZeroDuration();
  };
  struct Watched {  // a value, such as a job's stage or a rank's phase, and since when it holds
    int64_t value = 0;
    absl::Duration since = absl::ZeroDuration();
  };

  struct JobNodes {  // the nodes of one attempt
    int64_t attempt = -1;
    int num_ranks = 0;
    std::vector<std::string> nodes;  // sorted
  };

  void Advance(absl::Duration now);
  // Returns NodesOf(job), cached for an attempt because every report asks for it.
  const std::vector<std::string>& Nodes(const JobRecord& job) const;
  bool IsOn(const JobRecord& job, const std::string& node_id) const;
  // Returns for how long a rank has reported this phase.
  absl::Duration InPhase(const JobRecord& job, int rank, megascale::telemetry::v1::Phase phase);
  std::vector<Event> VerdictsOf(const JobRecord& job, const NodeRecord& node,
                                const megascale::agent::v1::ActualJob& report);
  void AddPreflight(const JobRecord& job, const NodeRecord& node,
                    const megascale::agent::v1::Preflight& preflight,
                    std::vector<Event>* events) const;
  std::vector<Event> RankVerdicts(const JobRecord& job, const NodeRecord& node,
                                  const megascale::agent::v1::ActualJob& report) const;
  void AddTrainingStarted(const JobRecord& job, std::vector<Event>* events) const;
  // True when every rank of the attempt has reported that its shard of `step` is on storage.
  bool AllStored(const JobRecord& job, int64_t step) const;
  void AddStoredShards(const JobRecord& job, const megascale::agent::v1::ActualJob& report,
                       std::vector<Event>* events) const;
  void AddRetentionEnded(const DriverState& state, const JobRecord& job,
                         std::vector<Event>* events) const;
  // Appends AttemptProgressed with the newest step, if the job has not been credited with it yet.
  void AddProgress(const JobRecord& job, std::vector<Event>* events) const;
  // Appends `failures`, after the progress that was made before them.
  void AddFailures(const JobRecord& job, std::vector<Event> failures,
                   std::vector<Event>* events) const;
  std::vector<Suspect> SuspectsOf(const JobRecord& job);
  std::optional<Suspect> SuspectOf(const JobRecord& job, const Node& node,
                                   const megascale::telemetry::v1::RankStatus& status);
  void AddHung(const JobRecord& job, std::vector<Event>* events);
  void AddOverdue(const JobRecord& job, std::vector<Event>* events);
  void AddStorageFailed(const JobRecord& job, std::vector<Event>* events);
  absl::Duration Since(std::map<std::string, Watched>* watched, const std::string& key,
                       int64_t value);

  absl::Duration node_timeout_;
  absl::Duration last_call_;
  absl::Duration awake_ = absl::ZeroDuration();  // elapsed time, without the driver's own stalls
  std::map<std::string, Node> nodes_;
  std::map<std::string, int64_t> newest_step_;
  std::map<std::string, Watched> stages_;               // by job
  std::map<std::string, std::vector<Watched>> phases_;  // by job, then by rank
  std::map<std::string, Watched> storage_;  // by job: newest commit, and since when writes fail
  mutable std::map<std::string, JobNodes> job_nodes_;
};

}  // namespace megascale::driver
