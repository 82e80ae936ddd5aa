// The driver's one event loop: it owns the state, the failure detector, the log and the loss logs,
// and gives them their time. Inputs of all threads are queued; each round takes all that wait,
// applies what follows from them to the state in memory, makes it durable with one sync, and only
// then lets anything out: answers, desired states, cuts of loss logs.
// Threads: public functions from any thread; everything private runs on the loop's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/driver_state.h"
#include "controlplane/driver/event_log.h"
#include "controlplane/driver/failure_detector.h"
#include "controlplane/driver/loss_log.h"
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

class DriverLoop {
 public:
  struct Options {
    std::string state_directory;
    std::unique_ptr<LogStore> log;
    const base::Clock* clock = nullptr;
    // Events between two snapshots of the state.
    int64_t snapshot_interval_events = 1000;
    // Told the jobs that hold slots, with their attempts, after every change of that.
    std::function<void(const std::map<std::string, int64_t>&)> on_attempts;
  };

  // Replays the log. Nothing runs before Start.
  static absl::StatusOr<std::unique_ptr<DriverLoop>> Create(Options options);
  ~DriverLoop();

  void Start();
  // Ends the thread after the present round. Answers that are still due are Unavailable.
  void Stop();
  // OK as long as the loop works. Once the log cannot be written it stops for good.
  absl::Status WaitForFailure(absl::Duration timeout);

  // Blocking: until it is durable, at most `kAnswerTimeout` (then DeadlineExceeded: outcome
  // unknown, ask again with the same id). Errors: as proto/control.proto says.
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);
  absl::StatusOr<megascale::control::v1::Job> Submit(megascale::driver::v1::JobSubmitted submit);
  absl::StatusOr<megascale::control::v1::Job> Cancel(
      const megascale::driver::v1::CancelRequested& cancel);
  absl::StatusOr<megascale::control::v1::Job> GetJob(const std::string& job_id);
  absl::StatusOr<std::vector<megascale::control::v1::Job>> ListJobs();
  absl::StatusOr<megascale::control::v1::GetClusterResponse> GetCluster();
  // The job, and the steps completed since `position` (-1: none, only learn the position).
  absl::StatusOr<WatchUpdate> Watch(const std::string& job_id, int64_t position);

  // An agent connected, reported, went. `done`, called on the loop's thread, asks for more.
  void OnHello(const megascale::agent::v1::Hello& hello, std::shared_ptr<AgentLink> link,
               std::function<void()> done);
  void OnReport(const std::string& node_id, megascale::agent::v1::ActualState report,
                std::function<void()> done);
  void OnGone(const std::string& node_id, const AgentLink* link);

 private:
  // Runs before the commit; what it returns runs after it.
  using Output = std::function<void()>;
  using Input = std::function<Output()>;
  struct Link {
    std::shared_ptr<AgentLink> link;
    megascale::agent::v1::DesiredState sent;
  };

  explicit DriverLoop(Options options);
  absl::Status Replay();
  bool Post(Input input);
  // Runs `decide` before and `answer` after the commit.
  template <typename T>
  absl::StatusOr<T> Call(std::function<absl::Status()> decide,
                         std::function<absl::StatusOr<T>()> answer);

  void Run();
  std::deque<Input> TakeInputs();
  absl::Status Round();
  void Tick(absl::Duration now);
  void Feed(Event event);
  void FeedAll(std::vector<Event> events);
  absl::Status Commit();
  absl::Status CutLossLogs();
  void KeepTimers(absl::Duration now);
  void TellAttempts();
  void SendDesired();
  absl::Status TakeSteps(const std::string& node_id,
                         const megascale::agent::v1::ActualState& report);
  absl::StatusOr<LossLog*> LossLogOf(const JobRecord& job);
  absl::StatusOr<megascale::control::v1::Job> View(const std::string& job_id);
  absl::StatusOr<WatchUpdate> ViewUpdate(const std::string& job_id, int64_t position);

  Options options_;
  DriverState state_;
  FailureDetector detector_;
  std::vector<Event> pending_;  // applied, not yet durable
  int64_t num_snapshot_ = 0;    // state_.num_events() at the last snapshot
  std::map<std::string, std::unique_ptr<LossLog>> loss_logs_;
  std::map<std::string, int64_t> cut_attempts_;  // for which the job's loss log was cut
  std::map<std::string, std::pair<absl::Duration, Event>> timers_;  // by key: when due
  std::map<std::string, Link> links_;
  std::map<std::string, int64_t> told_attempts_;
  int64_t version_ = 0;  // of the newest desired state
  bool state_changed_ = true;
  absl::Duration next_tick_ = absl::ZeroDuration();
  absl::Status loss_status_;  // first error of a loss log

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Input> inputs_;
  bool stopping_ = false;
  absl::Status failure_;
  std::thread thread_;
};

}  // namespace megascale::driver
