// The work of the driver's one thread, without the thread. The shell owns the state, the failure
// detector, the log, the loss logs and the links to the agents, and works in rounds. A round takes
// the waiting inputs, applies the events that follow from them to the state in memory, makes these
// durable with one sync, and only then has effects: cuts of loss logs, the view that readers read,
// desired states, answers.
// Everything outside is behind an interface (EventLog, JobFiles, AgentLink, Clock), so the
// simulator runs this very code and can end it between any two effects.
// An error in the files of one job affects only this job (job_logs.h).
//
// After an error of Round the newest decisions are not durable: the shell must not be used any
// more, and the program ends. Threads: one at a time, except for `view`. Blocking: Create and Round
// wait for the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/detection/agent_monitor.h"
#include "controlplane/driver/detection/new_nodes.h"
#include "controlplane/driver/retention/job_retention.h"
#include "controlplane/driver/shell/driver_view.h"
#include "controlplane/driver/shell/job_evidence.h"
#include "controlplane/driver/shell/job_logs.h"
#include "controlplane/driver/shell/step_counts.h"
#include "controlplane/driver/storage/data_file_lists.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/log_clock.h"
#include "controlplane/driver/storage/loss_log.h"
#include "controlplane/driver/storage/tensorboard_log.h"
#include "controlplane/protocol/protocol.h"
#include "proto/control.pb.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

// Sends to one connected agent. Threads: any. Never blocks.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  // Sends a desired state; it replaces an earlier one that is not sent yet.
  virtual void SendDesired(const megascale::agent::v1::DesiredState& desired) = 0;
  virtual void Close(const absl::Status& why) = 0;
  // Sends a message after those that wait.
  virtual void Send(megascale::agent::v1::AgentDown message) {}
  // Who is at the other end, as far as the driver itself knows.
  virtual AgentPeer peer() const { return {}; }
};

// The present attempt of a job that holds slots.
struct RunningAttempt {
  int64_t attempt = 0;
  std::vector<std::string> nodes;  // that hold its ranks, sorted
};

class DriverShell {
 public:
  struct Options {
    std::string state_directory;
    std::unique_ptr<EventLog> log;
    JobFiles* files = nullptr;           // outlives the shell
    const base::Clock* clock = nullptr;  // outlives the shell
    // Number of events between two snapshots of the state; at least that of its jobs and machines.
    int64_t snapshot_interval_events = 1000;
    // As JobLogs::kSyncInterval.
    absl::Duration loss_log_interval = JobLogs::kSyncInterval;
    JobRetention retention;
    // How long an agent may be silent before its machine counts as lost.
    absl::Duration node_timeout = FailureDetector::kNodeTimeout;
    // Called with the attempts of all jobs that hold slots, by job id, after every change.
    // Exchanges between machines are among these attempts, as attempt 1 of their group
    // (ExchangeRequest).
    std::function<void(const std::map<std::string, RunningAttempt>&)> on_attempts;
    // Does work that nobody waits for, on any thread, beside later rounds; null: the round does it.
    // The work uses `files`. Of jobs that have not ended, the next driver does what was not done.
    std::function<void(std::function<void()>)> do_later;
    // Random; the secret of a new log, from which the proofs of desired states derive.
    std::string secret;
    // How machines are tested before they get ranks.
    megascale::agent::v1::TestKind machine_tests = megascale::agent::v1::TEST_KIND_UNSPECIFIED;
    // No agent of the driver before lives: their machines are lost at once.
    bool agents_ended = false;
    // The rate that two machines should reach, bytes per second; 0: as measured (exchanges.h).
    double exchange_rate = 0;
    // The maximum number of slots that an agent may offer.
    int slots_max = protocol::kSlotsMax;
    // How many new nodes agents with one certificate may make in an hour.
    int64_t new_nodes_per_hour = NewNodes::kPerHour;
    // True: a new node gets ranks only once an operator has named it (UncordonNode).
    bool names_nodes = false;
  };
  // An input runs before the commit of its round; the output that it returns runs after the commit.
  using Output = std::function<void()>;
  using Input = std::function<Output()>;

  // Replays the log.
  static absl::StatusOr<std::unique_ptr<DriverShell>> Create(Options options);

  // Starts the time within which every node has to report. Call once, before the first round.
  void Begin();
  // Runs one round with these inputs. Call no later than `next_tick`.
  absl::Status Round(const std::vector<Input>& inputs);
  absl::Duration next_tick() const { return next_tick_; }
  const DriverState& state() const { return state_; }
  const JobIndex& index() const { return index_; }
  // The number of jobs whose loss log is in memory.
  size_t num_loss_logs() const { return loss_logs_.num_open(); }
  // Returns the view of the newest round. It is published before the round's answers, so a read
  // after an answer sees what that answer told. Threads: any.
  std::shared_ptr<const DriverView> view() const { return publisher_->Newest(); }

  // --- for inputs, before the commit. A request may be answered only once it is durable: answer it
  // in the output. Errors: as proto/control.proto says.
  absl::Status Submit(megascale::driver::v1::JobSubmitted submit);
  absl::Status Cancel(const megascale::driver::v1::CancelRequested& cancel);
  absl::Status Evict(const megascale::driver::v1::NodeEvicted& evicted);
  absl::Status Uncordon(const std::string& node_id);
  absl::Status SetSpare(const megascale::driver::v1::NodeSpareSet& spare_set);
  // Takes a suspicion: why a job stands still, or why it is slow. A suspicion that is out of date,
  // or that repeats a recent one, is ignored.
  absl::Status Suspect(const megascale::driver::v1::SuspectFound& found);
  // Takes a client's report about a machine (IsNewReport).
  absl::Status Report(megascale::driver::v1::SuspectFound found);
  // Takes over an agent that connected. Returns false when the agent may not join: then its link is
  // closed with the reason.
  bool OnHello(megascale::agent::v1::Hello hello, std::shared_ptr<AgentLink> link);
  // Take an agent's report, and an agent's disconnection.
  void OnReport(const std::string& node_id, megascale::agent::v1::ActualState report);
  void OnGone(const std::string& node_id, const AgentLink* link);
  // Take the list of a job's files, which an agent found, and answer an agent that asks for it.
  void OnDataFiles(const megascale::agent::v1::DataFiles& files);
  void OnFetchDataFiles(const megascale::agent::v1::FetchDataFiles& fetch, AgentLink* link);

 private:
  // What an agent is told about the step records of a job.
  struct StepWord {
    megascale::agent::v1::StepDuty duty = megascale::agent::v1::STEP_DUTY_UNSPECIFIED;
    int64_t acked = 0;
    bool operator==(const StepWord&) const = default;
  };
  struct Link {
    std::shared_ptr<AgentLink> link;
    // About the newest desired state that was sent.
    std::string print;                      // its DesiredStates::Fingerprint
    std::map<std::string, int64_t> known;   // by job: the attempt that the agent had reported then
    std::map<std::string, StepWord> steps;  // by job
  };

  explicit DriverShell(Options options);
  absl::Status Replay();
  void LoseAllNodes();
  void Tick(absl::Duration now);
  void Feed(Event event);
  void FeedAll(std::vector<Event> events);
  void Forget(absl::Duration now);
  void ForgetJobs();
  // Forgets what it keeps of the job beside the state.
  void DropTraces(const std::string& job_id);
  void ForgetNodes();
  // `touched_jobs`: that the events of this round touched.
  absl::Status Commit(const std::set<std::string>& touched_jobs);
  void SyncLossLogs(const std::set<std::string>& touched_jobs);
  void CutLossLogs();
  // Cuts the job's loss log for its attempt; `cut_attempts_` tells whether that could be done.
  void CutLossLog(const JobRecord& job);
  void KeepTimers(absl::Duration now);
  void TellAttempts(const std::set<std::string>& job_ids);
  // Brings the exchanges among the told attempts up to date; returns whether any changed.
  bool NoteExchanges();
  void ForgetEnded(const std::set<std::string>& job_ids);
  // Notes the nodes whose agents these changes may concern.
  void NoteListeners(const JobIndex::Touched& touched);
  void NoteStepWords();
  void SendDesired();
  void SendDesired(const std::string& node_id, const DesiredStates& states, Link* link);
  IndexedState indexed() const { return {state_, index_}; }
  std::map<std::string, int64_t> KnownAttempts(const std::string& node_id) const;
  // Returns what the node's agent is to be told, by job. Acknowledgements are told only to agents
  // that have step records, because otherwise each would cost a message to every agent of the job.
  std::map<std::string, StepWord> StepWordsFor(const std::string& node_id);
  // Drops checkpoints from a report whose commit must wait. The agent reports them again.
  void HoldCommits(megascale::agent::v1::ActualJob* reported);
  // Returns true if the report is of the agent that holds the node id, and of this epoch.
  bool Counts(const std::string& node_id, const megascale::agent::v1::ActualState& report) const;
  void TakeSteps(const std::string& node_id, const megascale::agent::v1::ActualState& report);
  void TakeHeldOut(const JobRecord& job, const megascale::agent::v1::ActualJob& actual,
                   int64_t newest);
  LossLog* LossLogOf(const JobRecord& job);
  // Writes job.json, soon, if it is missing. A failure is ignored.
  void Describe(const JobRecord& job);
  void KeepEvidence(const JobRecord& job);
  // Asks agents for the lists of files that are missing in the folders of jobs.
  void AskForDataFiles(absl::Duration now);
  absl::Status MayJoin(const megascale::agent::v1::Hello& hello, const AgentPeer& peer) const;
  // Compares this driver's epoch with what an agent knows. Begins a newer epoch, or stops this
  // driver after the round, where epoch.h says so. Errors: as IsBehind.
  absl::Status CompareEpochs(const megascale::agent::v1::ActualState& known);
  // Logs a line about the node, at most one a minute.
  void LogSeldom(const std::string& node_id, const AgentPeer& peer, const std::string& line);

  Options options_;
  DriverState state_;
  std::unique_ptr<const LogClock> log_clock_;
  JobIndex index_{state_};
  NewNodes new_nodes_;
  AgentMonitor monitor_;
  std::vector<Event> pending_;  // applied, not yet durable
  int64_t num_snapshot_ = 0;    // state_.num_events() at the last snapshot
  JobLogs loss_logs_;
  TensorBoardLogs tensorboard_logs_;
  std::set<std::string> described_;              // jobs that have their job.json
  std::vector<std::string> to_describe_;         // jobs that may not have it yet
  std::map<std::string, int64_t> cut_attempts_;  // by job: attempt for which its loss log was cut
  StepCounts counts_;
  std::map<std::string, std::pair<absl::Duration, Event>> timers_;  // by key: when due
  std::map<std::string, Link> links_;
  DesiredParts desired_parts_;
  std::set<std::string> listeners_;              // nodes whose desired state may have changed
  bool all_listen_ = true;                       // every node's may have
  std::map<std::string, int64_t> acknowledged_;  // by job, at the last tick
  // Time of the last line, by node; new nodes of a certificate count as one.
  std::map<std::string, absl::Duration> lines_logged_;
  std::map<std::string, RunningAttempt> told_attempts_;
  std::set<std::string> told_exchanges_;  // groups that are among them
  DataFileLists data_files_;
  JobEvidences evidences_;
  std::unique_ptr<ViewPublisher> publisher_;
  bool keeps_evidence_ = false;  // the driver before this one kept evidence, too
  int64_t version_ = 0;          // of the newest desired state
  bool state_changed_ = true;
  absl::Duration next_tick_ = absl::ZeroDuration();
  absl::Duration next_forgetting_ = absl::ZeroDuration();
  absl::Status stop_;  // not OK: another driver has taken over
};

}  // namespace megascale::driver
