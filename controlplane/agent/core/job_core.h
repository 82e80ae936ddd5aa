// The part of AgentCore that concerns one job: its processes, their outcomes and its report.
// Private to this folder; agent_core.h is the manual.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "controlplane/agent/core/agent_core.h"

namespace megascale::agent {

// The maximum number of restarts of the host process in a row without progress.
inline constexpr int kHostRestartsMax = 5;
// The maximum number of step records in one report, which keeps a report below gRPC's limit; its
// jobs have equal parts, of at least kStepsOfAJobMin. The other records follow when these are
// acknowledged.
inline constexpr int kStepsPerReportMax = 8192;
inline constexpr int kStepsOfAJobMin = 64;

class JobCore {
 public:
  using Heartbeats = std::map<int64_t, telemetry::v1::RankStatus>;

  explicit JobCore(std::string node_id) : node_id_(std::move(node_id)) {}

  // Returns the phase or the restore point in `desired` if this version does not know it, as text;
  // empty: this version knows both.
  static std::string UnknownIn(const v1::DesiredJob& desired);
  // Takes over `desired`, unless its attempt is older than the known one. If something in it is
  // unknown, the running attempt stays in its phase, and a new attempt does not start.
  void SetDesired(const v1::DesiredJob& desired, absl::Duration now);
  void SetUnwanted() {
    wanted_ = false;
    next_.reset();
  }
  // From now on this object only ends the job's processes. A new desired state of the job waits
  // until a new JobCore takes it over (TakeNext).
  void Abandon() { abandoned_ = true; }
  // Returns the job's desired state for the JobCore after an abandoned one; nullopt: nothing.
  std::optional<v1::DesiredJob> TakeNext() { return std::exchange(next_, std::nullopt); }

  bool has_processes() const { return !processes_.empty(); }
  // True while processes run, or while the attempt runs and its host waits for its restart.
  bool holds_machine() const { return has_processes() || (host_starts_ > 0 && HostIsDue()); }
  bool Has(int64_t process_id) const { return processes_.count(process_id) > 0; }
  void OnPrepareFailed(const absl::Status& why, absl::Duration now);
  void OnStoreChecked(int64_t attempt, const absl::Status& outcome, absl::Duration now);
  void OnStarted(int64_t process_id, absl::StatusOr<int> pid, absl::Duration now);
  void OnEnded(int64_t process_id, const ProcessEnd& end, absl::Duration now);
  // Returns true if the driver should hear of this message soon.
  bool OnWorkerMessage(int64_t process_id, const link::v1::FromWorker& message);
  void OnHostMessage(int64_t process_id, const link::v1::FromHost& message);
  void OnHostProgress(int64_t process_id);
  void OnSnapshots(std::vector<checkpoint::SealedSnapshot> held) { held_ = std::move(held); }

  // Appends the next actions. Increments `last_process_id` for each process to start.
  void Reconcile(absl::Duration now, int64_t* last_process_id, std::vector<Action>* actions);
  absl::Duration NextWake() const;

  // True when the job is not wanted any more and has no process.
  bool finished() const { return (!wanted_ || abandoned_) && processes_.empty(); }
  // True when no unwanted process is left.
  bool applied() const;
  absl::Duration heartbeat_interval() const;
  // Returns the host processes whose timer thread stopped longer ago than the job's heartbeat
  // timeout.
  std::vector<int64_t> HungHosts(const Heartbeats& heartbeats) const;
  // `as_list`: the driver is of an older version, so the fingerprint of the data is a list.
  struct ReportOptions {
    int steps_max = kStepsPerReportMax;
    bool as_list = false;
  };
  v1::ActualJob Report(const Heartbeats& heartbeats, const ReportOptions& options) const;
  // The SHA-256 of each file of the data, which this attempt's preflight here found; empty: it has
  // not passed.
  const google::protobuf::RepeatedPtrField<std::string>& files() const { return files_; }

 private:
  using AttemptStep = std::pair<int64_t, int64_t>;

  struct Process {
    int64_t id = 0;
    int rank = 0;
    bool preflight_only = false;
    bool retain_only = false;
    int pid = 0;
    bool killed = false;   // killed because it is not wanted or did not stop in time
    bool overdue = false;  // it did not stop in time
    bool stop_sent = false;
    bool stepped = false;  // it has completed a step
    std::optional<v1::RankFailure> reported;
    std::optional<link::v1::Finished> finished;
    // The requests that a host process has received.
    std::set<std::tuple<int, int64_t, int>> persist_sent;  // rank, step, buffer
    std::set<AttemptStep> finalize_sent;
    std::string retain_sent;
  };
  struct Outcome {
    v1::ActualRank::State state;
    int64_t step = 0;  // the newest completed step, if it did not fail
    v1::RankFailure failure;
    absl::Duration noticed_at = absl::ZeroDuration();  // when the failure was noticed
  };

  void FailRank(int rank, v1::RankFailure failure);
  void FailHost(v1::RankFailure failure);
  bool InPhase(v1::DesiredJob::Phase phase) const { return desired_.phase() == phase; }
  std::vector<int> LocalRanks() const;
  Process* HostProcess();
  const Process* FindRank(int rank) const;
  absl::Duration StopDeadline() const;

  void KillAll(std::vector<Action>* actions);
  void Kill(Process* process, std::vector<Action>* actions);
  // Switches to the desired attempt. Requires: there is no process.
  void Adopt();
  void ReconcilePreflight(absl::Duration now, int64_t* last_process_id,
                          std::vector<Action>* actions);
  void ReconcileRun(absl::Duration now, int64_t* last_process_id, std::vector<Action>* actions);
  void ReconcileStop(absl::Duration now, int64_t* last_process_id, std::vector<Action>* actions);
  void ReconcileRetain(absl::Duration now, int64_t* last_process_id, std::vector<Action>* actions);
  // Forgets how the host processes of the attempt before, or of the phase before, ended.
  void ForgetHost();
  bool WantsHost() const;
  bool HostIsDue() const;  // no host process runs, and one must start now or after its backoff
  void StartHost(absl::Duration now, int64_t* last_process_id, std::vector<Action>* actions);
  void Start(int rank, int64_t* last_process_id, std::vector<Action>* actions);
  void TellHost(std::vector<Action>* actions);
  void TellRetention(Process* host, std::vector<Action>* actions);

  // Takes a completed step. Returns true if the driver should hear of it soon.
  bool OnStep(const telemetry::v1::StepRecord& record, Process* process);
  bool ReportsSteps() const;
  // Adds what is kept of the attempts: snapshots in memory, stored shards, manifests.
  void ReportSaved(v1::ActualJob* report) const;
  void EndRank(const Process& process, const ProcessEnd& end);
  void EndHost(const Process& process, v1::RankFailure failure, absl::Duration now);
  void OnShard(const link::v1::ShardPersisted& shard);
  void DropCommitted();

  std::string node_id_;
  bool wanted_ = true;
  bool abandoned_ = false;                     // it is of an older epoch
  std::optional<v1::DesiredJob> next_;         // what the new epoch wants
  absl::Duration now_ = absl::ZeroDuration();  // time of the newest call that passed it
  v1::DesiredJob desired_;
  std::string unknown_;  // what was desired last and is not in desired_; "": nothing
  std::optional<absl::Duration> stop_since_;

  int64_t attempt_ = 0;    // the attempt of everything below; 0: there was none yet
  bool prepared_ = false;  // PrepareMemory was issued for the attempt
  bool launched_ = false;  // its ranks were started
  std::map<int64_t, Process> processes_;
  std::map<int, Outcome> outcomes_;  // by rank; of ranks that ended
  std::vector<Action> outbox_;       // consequences of messages, for the next Reconcile

  // The preflight passes when the host process has passed it and the store, if it is a Redis
  // server, works.
  std::optional<v1::Preflight> preflight_;  // with the digest of the data
  google::protobuf::RepeatedPtrField<std::string> files_;
  bool store_check_sent_ = false;
  bool store_checked_ = false;

  int host_starts_ = 0;
  int host_failures_ = 0;  // in a row without progress
  absl::Duration host_start_after_ = -absl::InfiniteDuration();
  std::optional<v1::RankFailure> host_failure_;  // set: the host is not restarted any more
  absl::Duration host_failed_at_ = absl::ZeroDuration();

  std::vector<checkpoint::SealedSnapshot> held_;
  std::set<std::tuple<int64_t, int64_t, int>> shards_;  // attempt, step, rank
  std::map<AttemptStep, v1::StoredManifest> manifests_;
  std::map<int64_t, telemetry::v1::StepRecord> steps_;
  std::set<std::string> warnings_;  // of the attempt's ranks
  std::string storage_error_;
  std::optional<v1::CheckpointId> retained_;  // newest commit whose predecessors the host deleted
};

}  // namespace megascale::agent
