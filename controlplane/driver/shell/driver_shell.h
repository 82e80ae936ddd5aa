// What the driver's one thread does, without the thread: it owns the state, the failure detector,
// the log, the loss logs and the ways to the agents, and gives them their time in rounds. A round
// takes the inputs that wait, applies what follows from them to the state in memory, makes it
// durable with one sync, and only then lets anything out: cuts of loss logs, desired states,
// answers. Whatever it touches outside comes as a seam (LogStore, JobFiles, AgentLink, Clock), so
// the simulator runs this very code and ends it between any two effects.
//
// An error of Round means that what was decided could not be kept: the shell must not be used any
// more, and the program ends.
// Threads: one at a time. Blocking: Create and Round wait for the disk.
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
#include "controlplane/driver/driver_state.h"
#include "controlplane/driver/failure_detector.h"
#include "controlplane/driver/job_retention.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/loss_log.h"
#include "proto/control.pb.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

// The way to one connected agent. Threads: any. Never blocks.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  // Replaces a desired state that has not left yet.
  virtual void SendDesired(const megascale::agent::v1::DesiredState& desired) = 0;
  virtual void Close(const absl::Status& why) = 0;
};

struct WatchUpdate {
  megascale::control::v1::Job job;
  std::vector<megascale::telemetry::v1::StepRecord> steps;
  int64_t position = 0;  // for the next call
};

class DriverShell {
 public:
  struct Options {
    std::string state_directory;
    std::unique_ptr<LogStore> log;
    JobFiles* files = nullptr;           // outlives the shell
    const base::Clock* clock = nullptr;  // outlives the shell
    // Events between two snapshots of the state.
    int64_t snapshot_interval_events = 1000;
    JobRetention retention;
    // Told the jobs that hold slots, with their attempts, after every change of that.
    std::function<void(const std::map<std::string, int64_t>&)> on_attempts;
  };
  // An input runs before the commit of its round; what it returns runs after it.
  using Output = std::function<void()>;
  using Input = std::function<Output()>;

  // Replays the log.
  static absl::StatusOr<std::unique_ptr<DriverShell>> Create(Options options);

  // The grace period of all nodes begins. Once, before the first round.
  void Begin();
  // One round with these inputs. Due at `next_tick` at the latest.
  absl::Status Round(const std::vector<Input>& inputs);
  absl::Duration next_tick() const { return next_tick_; }
  const DriverState& state() const { return state_; }

  // --- for inputs, before the commit. What they ask for is known only once it is durable: answer
  // in the output. Errors: as proto/control.proto says.
  absl::Status Submit(megascale::driver::v1::JobSubmitted submit);
  absl::Status Cancel(const megascale::driver::v1::CancelRequested& cancel);
  absl::Status Evict(const megascale::driver::v1::NodeEvicted& evicted);
  absl::Status Uncordon(const std::string& node_id);
  // An agent connected, reported, went.
  void OnHello(const megascale::agent::v1::Hello& hello, std::shared_ptr<AgentLink> link);
  void OnReport(const std::string& node_id, const megascale::agent::v1::ActualState& report);
  void OnGone(const std::string& node_id, const AgentLink* link);

  // --- for outputs, after the commit: what is durable, joined with what agents last said.
  absl::StatusOr<megascale::control::v1::Job> View(const std::string& job_id);
  absl::StatusOr<std::vector<megascale::control::v1::Job>> ViewJobs();
  megascale::control::v1::GetClusterResponse ViewNodes() const;
  // Requires: the state has this node.
  megascale::control::v1::NodeView ViewOfNode(const std::string& node_id) const;
  // The job, and the steps completed since `position` (-1: none, only learn the position).
  absl::StatusOr<WatchUpdate> ViewUpdate(const std::string& job_id, int64_t position);

 private:
  struct Link {
    std::shared_ptr<AgentLink> link;
    // Of what was sent last: DesiredStates::PrintOf, the attempts that the agent had reported then,
    // and the steps that were acknowledged, both by job.
    std::string print;
    std::map<std::string, int64_t> known;
    std::map<std::string, int64_t> acked;
  };

  explicit DriverShell(Options options);
  absl::Status Replay();
  void Tick(absl::Duration now);
  void Feed(Event event);
  void FeedAll(std::vector<Event> events);
  void ForgetJobs(absl::Duration now);
  absl::Status Commit();
  absl::Status CutLossLogs();
  void KeepTimers(absl::Duration now);
  void TellAttempts();
  void SendDesired(bool changed);
  void ReadReports(const std::string& node_id, std::map<std::string, int64_t>* known,
                   std::map<std::string, int64_t>* acked) const;
  absl::Status TakeSteps(const std::string& node_id,
                         const megascale::agent::v1::ActualState& report);
  absl::StatusOr<LossLog*> LossLogOf(const JobRecord& job);
  // Writes job.json where it is not there yet. Not worth an error.
  void Describe(const JobRecord& job);

  Options options_;
  DriverState state_;
  FailureDetector detector_;
  std::vector<Event> pending_;  // applied, not yet durable
  int64_t num_snapshot_ = 0;    // state_.num_events() at the last snapshot
  std::map<std::string, std::unique_ptr<LossLog>> loss_logs_;
  std::set<std::string> described_;              // jobs that have their job.json
  std::map<std::string, int64_t> cut_attempts_;  // for which the job's loss log was cut
  std::map<std::string, std::pair<absl::Duration, Event>> timers_;  // by key: when due
  std::map<std::string, Link> links_;
  std::map<std::string, int64_t> told_attempts_;
  int64_t version_ = 0;  // of the newest desired state
  bool state_changed_ = true;
  absl::Duration next_tick_ = absl::ZeroDuration();
  absl::Duration next_forgetting_ = absl::ZeroDuration();
  absl::Status loss_status_;  // first error of a loss log
};

}  // namespace megascale::driver
