// The driver's process: the production DriverShell over a simulated disk, in virtual time. It can
// be ended before any of its effects: a write, a sync, a desired state that leaves, an answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controlplane/driver/driver_shell.h"
#include "controlplane/driver/storage/simulated_disk.h"
#include "runtime/base/clock.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class DriverNode {
 public:
  using Answer = std::function<void(const absl::StatusOr<control::Job>&)>;
  using Done = std::function<void(const absl::Status&)>;

  explicit DriverNode(World* world);

  // What to do when the process ended: connections break.
  void OnEnd(std::function<void()> ended) { ended_ = std::move(ended); }

  void Start();
  bool up() const { return shell_ != nullptr; }
  // The process ends now, whatever it was about, and is started again after a while.
  void Crash(absl::string_view why);
  // It ends before its n-th effect from now on (1: the next).
  void CrashAtEffect(int64_t number) { effects_left_ = number; }
  // Its next write to the log, or to a file, fails; the process ends of it.
  void FailNextWrite() { fail_next_write_ = true; }
  // It does nothing for so long.
  void Stall(absl::Duration how_long);
  void StepWallClock(absl::Duration by) { clock_.wall_offset += by; }

  // Requests of operators. Not answered when the process ends before it could.
  void Submit(const driver::v1::JobSubmitted& submit, Answer answer);
  void Cancel(const driver::v1::CancelRequested& cancel, Answer answer);
  void GetJob(const std::string& job_id, Answer answer);
  void SetEvicted(const std::string& node_id, bool evicted, Done done);

  // From agents. Lost while the process is down.
  void OnHello(const agent::Hello& hello, std::shared_ptr<driver::AgentLink> link);
  void OnReport(const std::string& node_id, const agent::ActualState& report);
  void OnGone(const std::string& node_id, const driver::AgentLink* link);
  // A desired state is about to leave: false when the process ended before it.
  bool MaySend() { return Proceed(); }

  // What the log holds for sure.
  const DriverState& durable() const { return durable_; }
  // The loss log of a job as it lies on the disk; empty when there is none.
  std::string LossLogOf(const std::string& job_id);

 private:
  struct Clock : base::Clock {
    const Timeline* timeline = nullptr;
    absl::Duration wall_offset = absl::Hours(500'000);
    absl::Duration Monotonic() const override { return timeline->now() + absl::Seconds(1000); }
    absl::Time Wall() const override { return absl::UnixEpoch() + timeline->now() + wall_offset; }
  };

  bool Proceed();
  driver::SimulatedDisk::Fate FateOf(absl::string_view effect);
  void Post(driver::DriverShell::Input input);
  void Ask(std::function<absl::Status()> decide, const std::string& job_id, Answer answer);
  void ScheduleRound(absl::Duration when);
  void RunRound();
  void CheckReplay();
  void NoteDurable();

  World& world_;
  Clock clock_;
  driver::SimulatedDisk disk_;
  std::unique_ptr<driver::DriverShell> shell_;
  std::vector<driver::DriverShell::Input> inputs_;
  std::function<void()> ended_;
  DriverState durable_;
  bool dying_ = false;
  bool fail_next_write_ = false;
  std::optional<int64_t> effects_left_;
  absl::Duration round_at_ = absl::InfiniteDuration();  // when the next one is due
  absl::Duration stalled_until_ = absl::ZeroDuration();
};

}  // namespace megascale::sim
