// Injects faults, drawn from the seed. Every seed has only some kinds of faults, each at its own
// rate, so that rare combinations occur; a few seeds have no faults.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/agent_node.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/network.h"
#include "tests/sim/simulation.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class Faults {
 public:
  // The arguments outlive this object. `calm`: there are no faults.
  Faults(World* world, DriverNode* driver, Network* network,
         const std::vector<std::unique_ptr<AgentNode>>& agents, bool calm);

  // Injects one fault now, without the others. Returns false if no running job has ranks on two
  // machines.
  bool FailReporter(ReporterFault fault);

  // Injects faults until `until`; then repairs everything and calls Observer::OnHealed.
  void Start(absl::Duration until);

 private:
  using Fault = void (Faults::*)();

  void Next();
  void Heal();
  AgentNode& AnyAgent();
  AgentNode* FindAgent(const std::string& node_id);
  // Returns the nodes whose agents keep the steps of a job that runs; null: no job has two.
  struct Keepers {
    AgentNode* first = nullptr;
    AgentNode* deputy = nullptr;
  };
  Keepers AnyKeepers();
  void CutOffFor(const std::string& node_id, absl::Duration how_long);

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
  void FailReads();
  void LoseData();
  void HangKills();
  void FailJobFiles();
  void CorruptLossLog();
  void FailTest();
  void HangTest();

  World& world_;
  DriverNode& driver_;
  Network& network_;
  const std::vector<std::unique_ptr<AgentNode>>& agents_;
  std::vector<Fault> kinds_;  // of this seed
  absl::Duration pause_max_;
  absl::Duration until_;
};

}  // namespace megascale::sim
