// What goes wrong, and when: drawn from the seed. Every seed breaks only some kinds of things, each
// at a rate of its own, so that rare combinations come up; a few seeds break nothing.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/agent_node.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class Faults {
 public:
  // What is broken outlives this. `calm`: nothing breaks.
  Faults(World* world, DriverNode* driver, Network* network,
         const std::vector<std::unique_ptr<AgentNode>>& agents, bool calm);

  // Breaks things until `until`; then mends everything and says so.
  void Start(absl::Duration until);

 private:
  using Fault = void (Faults::*)();

  void Next();
  void Heal();
  AgentNode& AnyAgent();

  void CrashDriver();
  void CrashDriverAtEffect();
  void FailDriverWrite();
  void StallDriver();
  void StepWallClock();
  void CrashAgent();
  void CrashAgentAtAction();
  void LoseMachine();
  void StallAgent();
  void KillProcess();
  void HangProcess();
  void FailStart();
  void FailPrepare();
  void DelayKills();
  void CutOff();
  void BreakConnection();
  void FailStorage();
  void FillStorage();

  World& world_;
  DriverNode& driver_;
  Network& network_;
  const std::vector<std::unique_ptr<AgentNode>>& agents_;
  std::vector<Fault> kinds_;  // of this seed
  absl::Duration pause_max_;
  absl::Duration until_;
};

}  // namespace megascale::sim
