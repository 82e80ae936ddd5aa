// Invariants of the way of step records from the ranks to the loss logs. docs/invariants.md says
// why each must hold.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/driver_node.h"
#include "tests/sim/world.h"

namespace megascale::sim {

// TwoAgentsKeepSteps: the agents of at most two nodes report steps of an attempt, unless it began
// under a driver of an older version, which knows no duties.
class KeepersChecker : public Observer {
 public:
  explicit KeepersChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnReport(const std::string& node_id, const agent::ActualState& report) override;

 private:
  World& world_;
  std::map<std::pair<std::string, int64_t>, std::set<std::string>> nodes_;  // by job and attempt
  std::set<std::pair<std::string, int64_t>> of_old_driver_;
};

// StepsGoOn: while the driver and one of the two agents work, the loss log of a running job has
// every step at most 2 s after it was completed. For runs in which no other fault explains a delay.
class PromptnessChecker : public Observer {
 public:
  PromptnessChecker(World* world, DriverNode* driver);
  void OnStepCompleted(const ProcessName& process, int64_t step) override;
  void OnState(const DriverState& before, const DriverState& after) override;
  int64_t num_checked() const { return num_checked_; }

 private:
  void Check();

  World& world_;
  DriverNode& driver_;
  // When the first rank completed a step, by job, attempt and step.
  std::map<std::pair<std::string, int64_t>, std::map<int64_t, absl::Duration>> completed_;
  std::set<std::string> running_;
  std::map<std::string, int64_t> attempts_;
  int64_t num_checked_ = 0;
};

}  // namespace megascale::sim
