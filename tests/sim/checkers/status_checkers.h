// Invariants of the status that people see. docs/invariants.md says why each must hold.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/world.h"

namespace megascale::sim {

// StatusWasTrue: a status that an operator saw is durable, agrees with what the processes really
// did, and is never taken back.
class StatusChecker : public Observer {
 public:
  StatusChecker(World* world, const CheckpointStorage* storage)
      : world_(*world), storage_(*storage) {}
  void OnStatus(const control::Job& job, const DriverState& durable) override;
  void OnLoaded(const ProcessName& process, int64_t step) override;
  void OnStepCompleted(const ProcessName& process, int64_t step) override;

 private:
  std::string FindLie(const control::Job& job, const DriverState& durable);
  std::string FindLieAboutProgress(const control::Job& job);

  World& world_;
  const CheckpointStorage& storage_;
  std::map<std::string, control::Job> shown_;                        // last status, by job
  std::map<std::string, int64_t> completed_;                         // the highest step, by job
  std::map<std::pair<std::string, int64_t>, std::set<int>> loaded_;  // ranks, by job and attempt
};

// AgesAreTrue: no report says that a rank made progress later than it did, also if an agent that is
// busy repeats an old one.
class AgeChecker : public Observer {
 public:
  explicit AgeChecker(World* world) : world_(*world) {}
  void OnReport(const std::string& node_id, const agent::ActualState& report) override;

 private:
  World& world_;
};

// LossLogIsWhole: the loss log of a job that succeeded has every step, once and in order.
// EvaluationsAreWhole: it has the loss on held-out text of every step that is evaluated, and of no
// other. With keep_best, the checkpoint that is kept for the lowest of them is there.
class LossLogChecker : public Observer {
 public:
  LossLogChecker(World* world, DriverNode* driver) : world_(*world), driver_(*driver) {}
  void OnEnd(const DriverState& durable) override;

 private:
  void CheckDamaged(const JobRecord& job);
  void CheckEvaluations(const JobRecord& job, const std::vector<std::string>& lines);

  World& world_;
  DriverNode& driver_;
};

}  // namespace megascale::sim
