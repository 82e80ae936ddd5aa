// Injects faults, drawn from the seed. Every seed has only some kinds of faults, each at its own
// rate, so that rare combinations occur; a few seeds have no faults.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/agent_node.h"
#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/network.h"
#include "tests/sim/simulation.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class Faults {
 public:
  // The arguments outlive this object. `calm`: there are no faults.
  Faults(const Cluster& cluster, DriverNode* driver,
         const std::vector<std::unique_ptr<AgentNode>>& agents, bool calm);

  // Injects one fault now, without the others. Returns false if no running job has ranks on two
  // machines.
  bool FailReporter(ReporterFault fault);

  // Cuts the link between two machines for good, without other faults.
  void CutLinkForGood(LinkFault fault);

  // Asks an agent that has ranks to end, without other faults. Returns false if no job runs.
  bool DrainOne();

  // Injects faults until `until`; then repairs everything and calls Observer::OnHealed.
  void Start(absl::Duration until);

 private:
  using Kind = void (Faults::*)();

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
  void DrainAgent();
  void CopyAgent();
  void StallAgent();
  void StallReporter();
  void CutOffReporter();
  void CutOffKeepers();
  void KillProcess();
  void HangProcess();
  void FailStart();
  void FailPrepare();
  void DelayKills();
  void CutOff();
  void BreakConnection();
  void FailStorage();
  void FillStorage();
  void UnmountStorage();
  void TakeDirectoryOver();
  void FailReads();
  void DamageCheckpoint();
  void DamageMemory();
  void LoseData();
  void HangKills();
  void FailJobFiles();
  void CorruptLossLog();
  void DamageDriverLog();
  void FailTest();
  void HangTest();
  void CutLink();
  void CutLinkUntil(LinkFault fault, absl::Duration until);

  const Cluster cluster_;
  World& world_;
  DriverNode& driver_;
  Network& network_;
  const std::vector<std::unique_ptr<AgentNode>>& agents_;
  std::vector<std::unique_ptr<AgentNode>> copies_;  // agents with the node ids of others
  std::vector<Kind> kinds_;                         // of this seed
  absl::Duration pause_max_;
  absl::Duration until_;
};

}  // namespace megascale::sim
