// A worker process: the production WorkerCore and snapshot memory, with steps that take virtual
// time and compute nothing. The ranks of an attempt step together (Collective); when a rank dies,
// its peers learn of it after a while.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "actors/worker_core.h"
#include "proto/link.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/job/deadlines.h"
#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class WorkerProcess;

// Returns the loss on held-out text after a step. Falls, and rises again: the lowest is somewhere
// in the middle of a job.
double HeldOutLossAfter(int64_t step);

// Connects the ranks of each attempt: groups, steps, the death of a peer.
class Collective {
 public:
  explicit Collective(World* world) : world_(*world) {}

  // The rank waits for its peers. Calls OnJoined when all have joined, or when a peer died.
  void Join(const std::shared_ptr<WorkerProcess>& worker);
  // The rank is ready for the next step. Calls OnStepped when the step is done, or when a peer
  // died.
  void Enter(const std::shared_ptr<WorkerProcess>& worker, int64_t step);
  // True while the rank cannot go on because of a peer: it waits at a collective.
  bool IsWaiting(const WorkerProcess& worker);
  void RaiseStop(const WorkerProcess& worker, engine::StopFlag flag);
  void Leave(const WorkerProcess& worker);  // the worker's process is gone

 private:
  struct Group {
    std::map<int, std::weak_ptr<WorkerProcess>> members;  // by rank, while they live
    std::map<int, int64_t> entered;                       // by rank: the step it waits for
    engine::StopFlag stop = engine::StopFlag::kNone;
    bool broken = false;  // a member died after it had joined
    bool silent = false;  // the step stands still: machines do not answer each other
    bool HasHung() const;
  };
  // All ranks are there: they join, unless machines do not answer each other.
  void Connect(const std::shared_ptr<WorkerProcess>& any);
  // The rank's patience with machines that do not answer has ended.
  void EndConnecting(const std::weak_ptr<WorkerProcess>& weak);
  // All ranks are in the step: they do it, unless machines do not answer each other.
  void Exchange(const std::shared_ptr<WorkerProcess>& any, int64_t step);
  // As EndConnecting, in a step.
  void EndSilence(const std::weak_ptr<WorkerProcess>& weak, int64_t step);
  // The ranks that began the step end it, unless one of them hangs.
  void Finish(const std::weak_ptr<WorkerProcess>& weak, int64_t step, engine::StopFlag stop);
  Group& GroupOf(const WorkerProcess& worker);
  void Break(const std::shared_ptr<WorkerProcess>& member, const absl::Status& why);

  World& world_;
  std::map<std::pair<std::string, int64_t>, Group> groups_;  // by job and attempt
};

class WorkerProcess : public std::enable_shared_from_this<WorkerProcess> {
 public:
  // The error of a rank that did not meet its peers at the store in time.
  static constexpr char kNotMet[] = "the address of a rank did not come";

  struct Options {
    ProcessName name;
    agent::DesiredJob job;
    int pid = 0;
    std::shared_ptr<base::SharedMemory> snapshots;
    std::function<void(const link::v1::FromWorker&)> report;
    std::function<void(int status)> exit;
  };

  WorkerProcess(World* world, Collective* collective, CheckpointStorage* storage, Options options);

  void Start();
  void Stop(bool checkpoint);
  // Stops its threads for ever; with `dead` also the timer thread. Without it, a rank that waits
  // for peers hangs as soon as it has work of its own: it is then the only one that does not wait.
  void Hang(bool dead);
  // The step begins: all ranks compute.
  void OnComputing();
  // Ends the process: nothing that it scheduled happens any more.
  void Die();
  telemetry::RankStatus Heartbeat() const;

  const ProcessName& name() const { return options_.name; }
  int world_size() const { return options_.job.placements_size(); }
  // The ranks whose machines do not answer now, and those of them that this one connects to.
  std::vector<int> Silent() const;
  std::vector<int> Unreached() const;
  job::Deadlines deadlines() const { return job::DeadlinesOf(options_.job.spec().fault()); }
  bool alive() const { return alive_; }
  bool runs() const { return alive_ && !hung_; }

  void OnStoreReply(const agent::StoreReply& reply);
  void OnJoined(const absl::Status& status);
  void OnStepped(int64_t step, engine::StopFlag stop, const absl::Status& status);

 private:
  void After(absl::Duration delay, std::function<void()> run);
  void Perform(const std::vector<actors::WorkerAction>& actions);
  void Perform(const actors::WorkerAction& action);
  // Publishes the rank's address at the store, waits for those of the ranks after it, then joins.
  void Meet();
  void Ask(agent::StoreRequest request);
  void Load();
  bool CannotRead(const std::string& node_id) const;  // the machine cannot read the checkpoint now
  bool NobodyReads() const;                           // no machine of the job can
  bool WasMemoryDamaged() const;                      // its restore point may be
  absl::StatusOr<int64_t> ReadState() const;
  void TakeSnapshot(int64_t step, absl::Duration until);
  void Progress();

  World& world_;
  Collective& collective_;
  CheckpointStorage& storage_;
  const Options options_;
  actors::WorkerCore core_;
  std::optional<checkpoint::SnapshotWriter> writer_;
  telemetry::Phase phase_ = telemetry::PHASE_UNSPECIFIED;
  bool alive_ = true;
  bool hung_ = false;
  bool hangs_soon_ = false;
  std::map<std::string, int> num_awaited_;    // values, by the store's request that has no answer
  std::optional<absl::Duration> dead_since_;  // since when its timer thread is stopped
  absl::Duration progressed_at_;
};

}  // namespace megascale::sim
