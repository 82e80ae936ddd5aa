// Invariants of checkpoints and attempts. docs/invariants.md says why each must hold.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/world.h"

namespace megascale::sim {

// NeverTwoAttemptsCommit: processes of one attempt of the job wrote the whole committed checkpoint,
// it is on storage, and no later attempt has committed a checkpoint before.
class CommitChecker : public Observer {
 public:
  CommitChecker(World* world, const CheckpointStorage* storage)
      : world_(*world), storage_(*storage) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  void CheckNew(const JobRecord& job, const agent::StoredManifest& manifest);

  World& world_;
  const CheckpointStorage& storage_;
  std::map<std::string, int64_t> newest_attempt_;  // newest attempt that committed, by job
  std::map<std::string, std::set<std::pair<int64_t, int64_t>>> seen_;  // attempt and step, by job
};

// CommittedIsKept: a committed checkpoint is deleted only after a newer one was committed, and when
// it does not count any more.
class KeptChecker : public Observer {
 public:
  explicit KeptChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnCheckpointDeleted(const std::string& job_id, const agent::CheckpointId& id) override;

 private:
  using Checkpoint = std::pair<int64_t, int64_t>;  // step, attempt
  World& world_;
  std::map<std::string, std::set<Checkpoint>> committed_;  // all that were ever committed, by job
  std::map<std::string, std::set<Checkpoint>> present_;    // those that count now, by job
};

// OneAttemptAtATime: when the driver begins an attempt, no process of an older attempt is left on a
// machine that it believes to live, and no such process starts there afterwards. (A machine that
// the driver has given up may still run one; it can write files, but not commit.)
class FenceChecker : public Observer {
 public:
  explicit FenceChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnProcessStarted(const ProcessName& process) override;
  void OnProcessEnded(const ProcessName& process) override;

 private:
  void NoteGivenUp(const ProcessName& process);
  void Check(const ProcessName& process);

  World& world_;
  std::set<std::string> alive_;  // incarnations that the driver believes to live
  // The newest attempt that ran on a machine that was given up, by incarnation and job.
  std::map<std::pair<std::string, std::string>, int64_t> given_up_;
  // The oldest attempt that may run, by incarnation and job.
  std::map<std::pair<std::string, std::string>, int64_t> begun_;
  std::map<std::pair<std::string, int64_t>, ProcessName> processes_;  // by incarnation and id
};

// RestorePointIsThere: every rank can read the restore point of its attempt.
class RestoreChecker : public Observer {
 public:
  explicit RestoreChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override { durable_ = after; }
  void OnRestoreFailed(const ProcessName& process, const absl::Status& why) override;

 private:
  World& world_;
  DriverState durable_;
};

// OneEpochAtATime: in an epoch, no process that an older epoch wanted is left beside a process of
// the same job that the new one wants, except on a machine that was given up as lost since; and at
// the end of the run the agents have killed all processes of older epochs.
class EpochChecker : public Observer {
 public:
  explicit EpochChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnProcessStarted(const ProcessName& process) override;
  void OnProcessEnded(const ProcessName& process) override;
  void OnProcessKilled(const ProcessName& process) override;
  void OnEnd(const DriverState& durable) override;

 private:
  struct Process {
    ProcessName name;
    int64_t epoch = 0;    // in which it was started
    bool killed = false;  // but it may hang in a device
  };
  void NoteLost(const DriverState& before, const DriverState& after);

  World& world_;
  std::set<std::string> given_up_;  // incarnations that were lost in this epoch
  int64_t epoch_ = 0;
  int64_t num_of_older_ = 0;  // processes that were running when an epoch began
  std::map<std::pair<std::string, int64_t>, Process> processes_;  // by incarnation and id
};

// PreflightComesFirst: a rank starts only on a machine whose agent has passed the job's preflight.
class PreflightChecker : public Observer {
 public:
  explicit PreflightChecker(World* world) : world_(*world) {}
  void OnPreflightPassed(const ProcessName& process) override;
  void OnProcessStarted(const ProcessName& process) override;

 private:
  World& world_;
  std::set<std::pair<std::string, std::string>> passed_;  // incarnation and job
};

}  // namespace megascale::sim
