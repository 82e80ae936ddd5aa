// The driver's process: the production DriverShell over a simulated disk, in virtual time. A test
// can end it before any of its effects: a write, a sync, sending a desired state, an answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controlplane/driver/service/attempt_store.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"
#include "runtime/base/clock.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class DriverNode {
 public:
  using Answer = std::function<void(const absl::StatusOr<control::Job>&)>;
  using Done = std::function<void(const absl::Status&)>;

  explicit DriverNode(World* world);

  // Sets a callback for the end of the process, which breaks the connections.
  void OnEnd(std::function<void()> ended) { ended_ = std::move(ended); }

  void Start();
  bool up() const { return shell_ != nullptr; }
  // Ends the process now, whatever it does, and starts it again after `away`; the default comes
  // from the seed.
  void Crash(absl::string_view why, std::optional<absl::Duration> away = std::nullopt);
  // Ends the process before its n-th effect from now on (1: the next).
  void CrashAtEffect(int64_t number) { effects_left_ = number; }
  // Makes the next write to the log or a file fail, which ends the process.
  void FailNextWrite() { fail_next_write_ = true; }
  // Makes the largest record of a job too large for the log, until the process ends of that.
  void LimitRecords();
  // Makes the files of all jobs fail for this long.
  void FailJobFiles(absl::Duration how_long);
  // Changes bytes of a job's loss log on the disk.
  void CorruptLossLog();
  // Ends the process and damages its log; somebody mends it after `mended_after`. Until then no
  // driver may start. Does nothing if the log has too few events, or the process does not run.
  void DamageLog(driver::SimulatedDisk::LogDamage damage, absl::Duration mended_after);
  void MendLog() { disk_.MendLog(); }
  // Keeps a copy of the log, for DamageLog.
  void KeepCopyOfLog();
  // Keeps a copy of the state; ends the process and starts it on the copy. Without `declared`
  // nobody says that the state is a copy; a second call can say it.
  void BackUp();
  void Restore(absl::Duration away, bool declared);
  // Ends the process and starts the program of the present version; the one before was older.
  void Upgrade();
  // How often a driver stopped because its log is older than what agents know.
  int64_t num_outdated() const { return num_outdated_; }
  // How often a driver did not start because its log was damaged.
  int64_t num_refused() const { return num_refused_; }
  // Stops the process for this long.
  void Stall(absl::Duration how_long);
  void StepWallClock(absl::Duration by) { clock_.wall_offset += by; }

  // Requests of operators. There is no answer if the process ends first.
  void Submit(const driver::v1::JobSubmitted& submit, Answer answer);
  void Cancel(const driver::v1::CancelRequested& cancel, Answer answer);
  void GetJob(const std::string& job_id, Answer answer);
  void SetEvicted(const std::string& node_id, bool evicted, Done done);
  void SetSpare(const std::string& node_id, bool spare, Done done);
  // Reads one page of the list of jobs.
  using Listed = std::function<void(const absl::StatusOr<control::ListJobsResponse>&)>;
  void List(const control::ListJobsRequest& request, Listed listed);
  // The driver's own examination of a job found a suspect.
  void Suspect(const driver::v1::SuspectFound& found);

  // Messages from agents. They are lost while the process is down.
  void OnHello(const agent::Hello& hello, std::shared_ptr<driver::AgentLink> link);
  void OnReport(const std::string& node_id, const agent::ActualState& report);
  void OnGone(const std::string& node_id, const driver::AgentLink* link);
  // A request for the store that the driver serves; `reply` may be called much later, or never.
  void OnStore(const std::string& node_id, const agent::StoreRequest& request,
               driver::AttemptStore::Reply reply);
  // Call before sending a desired state; returns false if the process ended first.
  bool MaySend() { return Proceed(); }

  // The state that is durable in the log.
  const DriverState& durable() const { return durable_; }
  bool IsLossLogCorrupt(const std::string& job_id) const { return corrupt_.count(job_id) > 0; }
  // Returns true once the files of jobs have failed for so long that the driver may have set loss
  // logs aside: then steps are missing there.
  bool MayLackSteps() const { return may_lack_steps_; }
  // Returns the loss log of a job as it is on the disk; empty: there is no loss log.
  std::string LossLogOf(const std::string& job_id);

 private:
  struct Clock : base::Clock {
    const Timeline* timeline = nullptr;
    absl::Duration wall_offset = absl::Hours(500'000);
    bool follows_wall = false;  // broken on purpose
    absl::Duration Monotonic() const override { return timeline->now() + absl::Seconds(1000); }
    absl::Duration SinceBoot() const override {
      return follows_wall ? Wall() - absl::UnixEpoch() : Monotonic();
    }
    absl::Time Wall() const override { return absl::UnixEpoch() + timeline->now() + wall_offset; }
  };

  // Returns what a file holds; "": there is none, or it cannot be read.
  std::string ReadWhole(const std::string& path);
  bool Proceed();
  absl::StatusOr<std::unique_ptr<driver::DriverShell>> MakeShell();
  agent::TestKind MachineTests() const;
  driver::SimulatedDisk::Fate FateOf(absl::string_view effect);
  void Post(driver::DriverShell::Input input);
  void Ask(std::function<absl::Status()> decide, const std::string& job_id, Answer answer);
  // The same for what concerns no job.
  void Decide(std::function<absl::Status()> decide, Done done);
  void ScheduleRound(absl::Duration when);
  void RunRound();
  void CheckReplay();
  // Checks that the driver, which looks only at the jobs that events touch, has the state that
  // looking at all of them gives. Returns the latter.
  driver::DriverState CheckTouched(const DriverState& before);
  // Checks that readers see the state of the round that ended.
  void CheckView();
  // Checks that the counts in the index are those that counting anew gives.
  void CheckCounts();
  // Checks that a reader of all views gets every step of the loss log once and in order.
  void CheckSteps();
  // Returns true if the job's loss log has a step between these two.
  bool LossLogHas(const std::string& job_id, int64_t after, int64_t before);
  void NoteDurable();

  World& world_;
  Clock clock_;
  driver::SimulatedDisk disk_;
  std::unique_ptr<driver::AttemptStore> store_;  // ends with the process
  std::unique_ptr<driver::DriverShell> shell_;
  std::vector<driver::DriverShell::Input> inputs_;
  std::function<void()> ended_;
  DriverState durable_;
  bool dying_ = false;
  bool fail_next_write_ = false;
  absl::Duration job_files_fail_since_ = absl::ZeroDuration();
  absl::Duration job_files_fail_until_ = absl::ZeroDuration();
  bool may_lack_steps_ = false;
  std::set<std::string> corrupt_;  // jobs whose loss logs were changed
  struct Copy {
    driver::LogContents log;
    std::string count;  // the file beside the log
  };
  std::optional<Copy> backup_;
  bool restored_ = false;  // the copy has taken the log's place
  int64_t num_outdated_ = 0;
  int64_t num_refused_ = 0;
  std::optional<int64_t> effects_left_;
  int num_views_ = 0;        // that were checked
  int64_t num_viewed_ = -1;  // events of the newest view that was checked
  struct Reader {
    int64_t position = -1;  // in the job's steps, of this start of the driver
    int64_t attempt = 0;    // the newest that began to run
    int64_t step = 0;       // the newest that counts
    bool may_miss = false;  // the driver ended: the steps of its last round came to nobody
  };
  std::map<std::string, Reader> readers_;               // by job
  absl::Duration round_at_ = absl::InfiniteDuration();  // when the next round is due
  absl::Duration stalled_until_ = absl::ZeroDuration();
};

}  // namespace megascale::sim
