// Invariants of a job's life. docs/invariants.md says why each must hold.
#pragma once

#include <map>
#include <set>
#include <string>

#include "tests/sim/world.h"

namespace megascale::sim {

// TerminalNeverChanges: once a job has ended, nothing of it changes.
class TerminalChecker : public Observer {
 public:
  explicit TerminalChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  World& world_;
  std::map<std::string, std::string> ended_;  // the record, by job
};

// AcknowledgedIsKept: a job whose submit was acknowledged is there for ever; one whose cancel was
// acknowledged ends as CANCELLED.
class AcknowledgedChecker : public Observer {
 public:
  explicit AcknowledgedChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnSubmitAcknowledged(const std::string& job_id) override { submitted_.insert(job_id); }
  void OnCancelAcknowledged(const std::string& job_id) override { cancelled_.insert(job_id); }
  void OnEnd(const DriverState& durable) override { OnState(durable, durable); }

 private:
  World& world_;
  std::set<std::string> submitted_;
  std::set<std::string> cancelled_;
};

// RestartsEnd: no more than fault.max_restarts_without_progress attempts follow one another without
// progress; and attempts only grow. An attempt progressed when one of its ranks completed a step
// beyond those that were known when it began, or when a step that was really completed, if before,
// became known in it.
class RestartChecker : public Observer {
 public:
  explicit RestartChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnStepCompleted(const ProcessName& process, int64_t step) override;

 private:
  struct Job {
    int64_t attempt = 0;
    int64_t known_step = 0;        // when the attempt began
    int64_t highest_step = 0;      // that a rank of the attempt completed
    int64_t completed = 0;         // by a rank of any attempt
    int64_t without_progress = 0;  // attempts in a row, ended
  };
  World& world_;
  std::map<std::string, Job> jobs_;
};

// RecoveryHasACause: a job recovers only after a fault of one of its machines, or of the way there;
// not after one of the driver or of storage.
class CauseChecker : public Observer {
 public:
  // A fault counts for so long: longer than any timeout that it can lead to.
  static constexpr absl::Duration kConsequencesMax = absl::Seconds(60);

  explicit CauseChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnFault(const std::string& node_id) override;

 private:
  bool HasCause(const JobRecord& job) const;

  World& world_;
  std::map<std::string, absl::Duration> faults_;  // the last one, by node
};

// RunsOrEnds: once nothing is broken any more, every job is RUNNING or ended in bounded time.
class LivenessChecker : public Observer {
 public:
  static constexpr absl::Duration kRunningWithin = absl::Seconds(400);

  explicit LivenessChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnHealed() override;

 private:
  void CheckAll();

  World& world_;
  bool healed_ = false;
  DriverState durable_;
  std::set<std::string> ran_;  // since then
};

}  // namespace megascale::sim
