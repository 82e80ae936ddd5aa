// The thread around the driver's shell: inputs of all threads are queued, each round takes those
// that wait, and callers wait for the answers.
// Threads: public functions from any thread; the shell is the loop's thread's alone.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/driver_shell.h"
#include "proto/control.pb.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

class DriverLoop {
 public:
  // Replays the log. Nothing runs before Start.
  static absl::StatusOr<std::unique_ptr<DriverLoop>> Create(DriverShell::Options options);
  ~DriverLoop();

  void Start();
  // Ends the thread after the present round. Answers that are still due are Unavailable.
  void Stop();
  // OK as long as the loop works. Once the log cannot be written it stops for good.
  absl::Status WaitForFailure(absl::Duration timeout);

  // Blocking: until it is durable, at most `kAnswerTimeout` (then DeadlineExceeded: outcome
  // unknown, ask again with the same id). Errors: as proto/control.proto says.
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);
  absl::StatusOr<megascale::control::v1::Job> Submit(
      const megascale::driver::v1::JobSubmitted& submit);
  absl::StatusOr<megascale::control::v1::Job> Cancel(
      const megascale::driver::v1::CancelRequested& cancel);
  // The node as it is afterwards.
  absl::StatusOr<megascale::control::v1::NodeView> Evict(
      const megascale::driver::v1::NodeEvicted& evicted);
  absl::StatusOr<megascale::control::v1::NodeView> Uncordon(const std::string& node_id);
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
  using Output = DriverShell::Output;
  using Input = DriverShell::Input;

  DriverLoop(std::unique_ptr<DriverShell> shell, const base::Clock* clock);
  bool Post(Input input);
  // Runs `decide` before and `answer` after the commit.
  template <typename T>
  absl::StatusOr<T> Call(std::function<absl::Status()> decide,
                         std::function<absl::StatusOr<T>()> answer);

  void Run();
  std::vector<Input> TakeInputs();

  const std::unique_ptr<DriverShell> shell_;
  const base::Clock& clock_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Input> inputs_;
  bool stopping_ = false;
  absl::Status failure_;
  std::thread thread_;
};

}  // namespace megascale::driver
