// The worker actor: the root of a worker process. It takes one rank through one attempt: it joins
// the groups, loads the state, takes step after step with a snapshot where one is due, and reports
// to the agent. WorkerCore makes its decisions and knows neither actors nor sockets.
//   Parent: the process. Children: device, stage, shard, checkpoint.
//   Receives: events of its children; StopRequested and LinkLost from the link's reader thread.
//   States: joining -> loading -> training <-> evaluating, snapshotting -> ended.
//   Restart: never; after an error of its own or of a peer it reports and the process exits.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "actors/checkpoint_actor.h"
#include "actors/device_actor.h"
#include "actors/shard_actor.h"
#include "actors/stage_actor.h"
#include "actors/worker_core.h"
#include "proto/link.pb.h"

namespace megascale::actors {

using WorkerActor = WorkerEvents::extend<
    // The agent asks to stop; all ranks stop at the same step's end.
    caf::reacts_to<StopRequested>,
    // The agent is gone: ends the process.
    caf::reacts_to<LinkLost>>;

struct WorkerOptions {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerCoreOptions core;
  megascale::agent::v1::RestorePoint restore;
  telemetry::HeartbeatWriter* heartbeat = nullptr;
  std::function<void(const megascale::link::v1::FromWorker&)> report;
  std::function<void(int exit_code)> exit;  // the first call counts
};

struct WorkerState {
  WorkerOptions options;
  std::unique_ptr<WorkerCore> core;
  DeviceActor device;
  StageActor stage;
  ShardActor shard;
  CheckpointActor checkpoint;
  absl::Duration step_started;
  absl::Duration step_time;           // of the step that ended last
  absl::Duration evaluation_started;  // after that step
  absl::Duration evaluation_time;     // zero: there was no evaluation
  absl::Duration snapshot_started;
  absl::Duration snapshot_time;  // of the snapshot before the present step; zero: there was none

  void Start();
  void OnGroupsJoined(const GroupsJoined& message);
  void OnStateLoaded(const StateLoaded& message);
  void OnSnapshotTaken(const SnapshotTaken& message);
  void OnLinkLost(const LinkLost& message);
  void OnStepFinished(const StepFinished& message);
  void OnEvaluationFinished(const EvaluationFinished& message);
  void OnStopRequested(const StopRequested& message);

 private:
  void Perform(const std::vector<WorkerAction>& actions);
  void PerformOne(const WorkerAction& action);
};

WorkerActor::behavior_type Worker(WorkerActor::stateful_pointer<WorkerState> self,
                                  WorkerOptions options);

}  // namespace megascale::actors
