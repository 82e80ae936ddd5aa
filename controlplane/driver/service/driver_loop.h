// The thread that runs the driver's shell. Inputs of all threads are queued; each round takes the
// inputs that wait, and callers wait for the answers. Reads are not queued: they are answered from
// the newest view, in the caller's thread, even while the loop is busy.
// Threads: public functions from any thread; only the loop's own thread touches the shell.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "proto/control.pb.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

class DriverLoop {
 public:
  // Replays the log. No thread runs before Start.
  static absl::StatusOr<std::unique_ptr<DriverLoop>> Create(DriverShell::Options options);
  ~DriverLoop();

  void Start();
  // Ends the thread after the present round. Calls that still wait return Unavailable.
  void Stop();
  // Waits until the loop fails, because the log cannot be written, and returns why; OK after
  // `timeout`. A failed loop does not run again.
  absl::Status WaitForFailure(absl::Duration timeout);

  // The calls below answer once the request is durable. Blocking: at most `kAnswerTimeout`, then
  // DeadlineExceeded, which means that the outcome is unknown: call again with the same id. Errors:
  // as proto/control.proto says.
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);
  absl::StatusOr<megascale::control::v1::Job> Submit(
      const megascale::driver::v1::JobSubmitted& submit);
  absl::StatusOr<megascale::control::v1::Job> Cancel(
      const megascale::driver::v1::CancelRequested& cancel);
  // Evict and Uncordon return the node as it is afterwards.
  absl::StatusOr<megascale::control::v1::NodeView> Evict(
      const megascale::driver::v1::NodeEvicted& evicted);
  absl::StatusOr<megascale::control::v1::NodeView> Uncordon(const std::string& node_id);
  absl::StatusOr<megascale::control::v1::NodeView> SetSpare(
      const megascale::driver::v1::NodeSpareSet& spare_set);
  // Returns the job as it is after the suspicion.
  absl::StatusOr<megascale::control::v1::Job> Suspect(
      const std::string& job_id, const megascale::control::v1::Suspicion& suspicion);
  // As Suspect, for the report of a client, which is checked.
  absl::StatusOr<megascale::control::v1::Job> Report(
      const megascale::driver::v1::SuspectFound& found);
  // Returns the jobs that had begun an attempt and ended within `age_max`; jobs that succeeded come
  // after the others.
  absl::StatusOr<std::vector<std::string>> EndedJobs(absl::Duration age_max) const;

  // Reads never wait for the loop. A read after an answer of one of the calls above sees what that
  // answer told. Errors: Unavailable - the loop has ended.
  absl::StatusOr<std::shared_ptr<const DriverView>> View() const;
  absl::StatusOr<megascale::control::v1::Job> GetJob(const std::string& job_id) const;
  absl::StatusOr<std::vector<megascale::control::v1::Job>> ListJobs() const;
  absl::StatusOr<megascale::control::v1::ListJobsResponse> ListJobs(
      const megascale::control::v1::ListJobsRequest& request) const;
  absl::StatusOr<megascale::control::v1::GetClusterResponse> GetCluster() const;
  absl::Time wall() const { return clock_.Wall(); }

  // Tell the loop that an agent connected, reported or disconnected. `done` runs on the loop's
  // thread after the commit; the caller then reads the agent's next message. If an agent may not
  // join, its link is closed, and `done` is not called.
  void OnHello(const megascale::agent::v1::Hello& hello, std::shared_ptr<AgentLink> link,
               std::function<void()> done);
  void OnReport(const std::string& node_id, megascale::agent::v1::ActualState report,
                std::function<void()> done);
  void OnGone(const std::string& node_id, const AgentLink* link);
  // Take the list of a job's files, and answer an agent that asks for it.
  void OnDataFiles(megascale::agent::v1::DataFiles files);
  void OnFetchDataFiles(const megascale::agent::v1::FetchDataFiles& fetch,
                        std::shared_ptr<AgentLink> link);

 private:
  using Output = DriverShell::Output;
  using Input = DriverShell::Input;

  DriverLoop(std::unique_ptr<DriverShell> shell, const base::Clock* clock);
  // An urgent input begins a round at once; a report may wait for other reports for kReportGap.
  bool Post(Input input, bool is_urgent = true);
  // Runs `decide` before the commit of a round, and returns after it.
  absl::Status Carry(std::function<absl::Status()> decide);
  absl::StatusOr<megascale::control::v1::NodeView> NodeAfter(const std::string& node_id,
                                                             const absl::Status& status) const;
  // Runs `decide` before the commit of a round and `answer` after it.
  template <typename T>
  absl::StatusOr<T> Call(std::function<absl::Status()> decide,
                         std::function<absl::StatusOr<T>()> answer);

  void Run();
  // Waits for the next round and returns its inputs; nullopt: the loop stops. `reports_at`: the
  // earliest time for a round that has only reports.
  std::optional<std::vector<Input>> AwaitInputs(absl::Duration reports_at);

  const std::unique_ptr<DriverShell> shell_;
  const base::Clock& clock_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable failed_;
  std::deque<Input> inputs_;
  bool is_urgent_ = false;  // one of `inputs_` is
  bool stopping_ = false;
  absl::Status failure_;
  std::thread thread_;
};

}  // namespace megascale::driver
