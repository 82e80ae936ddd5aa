// Turns what agents report, and time, into verdicts: the events that the driver logs. Pure: time
// comes in as an argument. Reports are level-triggered and repeat, so every call compares with the
// core's state and says only what the state does not know yet.
//
// A node is lost when it is silent for heartbeat_timeout; a broken stream is no verdict. Time that
// passes while the driver itself stood still counts for at most `kStallMax`, so a stalled driver
// loses nobody. After a start of the driver every node has one heartbeat_timeout to report.
// Source: DESIGN sections 1.3 and 9 (Liveness).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

class FailureDetector {
 public:
  // Time between two calls beyond which the driver is held to have stood still.
  static constexpr absl::Duration kStallMax = absl::Seconds(1);
  // heartbeat_timeout of a node that has no job.
  static constexpr absl::Duration kIdleNodeTimeout = absl::Seconds(5);

  // `now`: monotonic time at which the driver began to listen; the grace period starts then.
  explicit FailureDetector(absl::Duration now) : last_call_(now) {}

  // An agent connected. Yields NodeJoined when this incarnation is new or was lost.
  std::vector<Event> OnHello(const DriverState& state, const megascale::agent::v1::Hello& hello,
                             absl::Duration now);

  // A report of an agent. Ignored when it is not of the incarnation that the state knows. The
  // events stand in the order in which they are to be applied: progress, checkpoints, ends,
  // failures, fences.
  std::vector<Event> OnReport(const DriverState& state, const std::string& node_id,
                              const megascale::agent::v1::ActualState& report, absl::Duration now);

  // Call several times per second.
  std::vector<Event> OnTick(const DriverState& state, absl::Duration now);

  // The newest step that the loss log of a job holds, for AttemptProgressed. Call before OnReport.
  void NoteStep(const std::string& job_id, int64_t step) { newest_step_[job_id] = step; }

  // The newest report of a node about a job; null: none in its present incarnation.
  const megascale::agent::v1::ActualJob* LastReport(const std::string& node_id,
                                                    const std::string& job_id) const;

  // For how long checkpoints of the job have not been written since the last one that was, as of
  // the last tick; zero: nothing is wrong. Counted anew after a start of the driver.
  absl::Duration StorageFailsFor(const std::string& job_id) const;

  // Time since the node's last report, or since the start of the driver.
  absl::Duration SilenceOf(const std::string& node_id) const;

 private:
  struct Node {
    megascale::agent::v1::Hello hello;
    megascale::agent::v1::ActualState report;
    absl::Duration heard = absl::ZeroDuration();  // in awake time
    bool punctual = false;  // the newest report came soon after the one before it
  };
  // A rank without life or progress, and how bad it is.
  struct Suspect {
    int rank = 0;
    std::string node_id;
    std::string evidence;
    bool dead = false;     // its timer thread stopped
    bool waiting = false;  // it is in a collective, so a peer may be the cause
    absl::Duration age = absl::ZeroDuration();
  };
  struct Watched {  // since when a job is in its stage, or a rank in its phase
    int64_t value = 0;
    absl::Duration since = absl::ZeroDuration();
  };

  struct JobNodes {  // of an attempt
    int64_t attempt = -1;
    int num_ranks = 0;
    std::vector<std::string> nodes;  // sorted
  };

  void Advance(absl::Duration now);
  // NodesOf, made once for an attempt: every report asks for it.
  const std::vector<std::string>& Nodes(const JobRecord& job) const;
  bool IsOn(const JobRecord& job, const std::string& node_id) const;
  absl::Duration TimeoutOf(const DriverState& state, const std::string& node_id) const;
  // For how long a rank has shown this phase.
  absl::Duration InPhase(const JobRecord& job, int rank, megascale::telemetry::v1::Phase phase);
  std::vector<Event> VerdictsOf(const JobRecord& job, const NodeRecord& node,
                                const megascale::agent::v1::ActualJob& report);
  void AddPreflight(const JobRecord& job, const NodeRecord& node,
                    const megascale::agent::v1::Preflight& preflight,
                    std::vector<Event>* events) const;
  std::vector<Event> RankVerdicts(const JobRecord& job, const NodeRecord& node,
                                  const megascale::agent::v1::ActualJob& report) const;
  void AddTrainingStarted(const JobRecord& job, std::vector<Event>* events) const;
  // Every rank of the attempt has told that its shard of `step` is on storage.
  bool AllStored(const JobRecord& job, int64_t step) const;
  void AddStoredShards(const JobRecord& job, const megascale::agent::v1::ActualJob& report,
                       std::vector<Event>* events) const;
  void AddRetentionEnded(const DriverState& state, const JobRecord& job,
                         std::vector<Event>* events) const;
  // Events that say a failure, with the newest step before them.
  void AddFailures(const JobRecord& job, std::vector<Event> failures, std::vector<Event>* events);
  std::vector<Suspect> SuspectsOf(const JobRecord& job);
  std::optional<Suspect> SuspectOf(const JobRecord& job, const Node& node,
                                   const megascale::telemetry::v1::RankStatus& status);
  void AddHung(const JobRecord& job, std::vector<Event>* events);
  void AddOverdue(const JobRecord& job, std::vector<Event>* events);
  void AddStorageFailed(const JobRecord& job, std::vector<Event>* events);
  absl::Duration Since(std::map<std::string, Watched>* watched, const std::string& key,
                       int64_t value);

  absl::Duration last_call_;
  absl::Duration awake_ = absl::ZeroDuration();  // time, without the driver's own stalls
  std::map<std::string, Node> nodes_;
  std::map<std::string, int64_t> newest_step_;
  std::map<std::string, Watched> stages_;               // by job
  std::map<std::string, std::vector<Watched>> phases_;  // by job, then by rank
  std::map<std::string, Watched> storage_;  // by job: since it fails, and the newest commit then
  mutable std::map<std::string, JobNodes> job_nodes_;
};

}  // namespace megascale::driver
