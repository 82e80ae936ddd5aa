// One machine: the production AgentCore, with a shell that does to simulated processes and memory
// what controlplane/agent/agent_loop does to real ones. The agent can be ended before any action
// that it carries out; its processes and its memory go with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controlplane/agent/agent_core.h"
#include "runtime/base/shared_memory.h"
#include "tests/sim/host_process.h"
#include "tests/sim/network.h"
#include "tests/sim/worker_process.h"
#include "tests/sim/world.h"

namespace megascale::sim {

// What all machines share.
struct Cluster {
  World* world = nullptr;
  Network* network = nullptr;
  Collective* collective = nullptr;
  CheckpointStorage* storage = nullptr;
};

class AgentNode {
 public:
  AgentNode(const Cluster& cluster, std::string node_id, int num_slots);

  void Start();
  bool up() const { return core_ != nullptr; }
  const std::string& node_id() const { return node_id_; }
  int num_slots() const { return num_slots_; }

  // The agent ends, and comes back as another incarnation after `away`.
  void Crash(absl::string_view why, absl::Duration away);
  // The machine is lost for good.
  void Remove();
  // It ends before the n-th action from now on (1: the next).
  void CrashAtAction(int64_t number) { actions_left_ = number; }
  // Kills a worker or a host process that is picked; false when there is none.
  bool KillSomething();
  bool HangSomething();
  // The next process cannot be started, or memory not be had.
  void FailNextStart() { fail_next_start_ = true; }
  void FailNextPrepare() { fail_next_prepare_ = true; }
  // Processes that are killed end only after so long (they hang in a device).
  void DelayKills(absl::Duration by) { kill_delay_ = by; }
  // It sees and does nothing for so long; its processes go on.
  void Stall(absl::Duration how_long);

 private:
  struct Child {
    ProcessName name;
    std::shared_ptr<WorkerProcess> worker;  // one of the two
    std::shared_ptr<HostProcess> host;
    int pid = 0;
    bool killed = false;  // by an action, while it lived
  };
  struct Memory {
    int64_t attempt = 0;
    std::map<int, std::shared_ptr<base::SharedMemory>> snapshots;  // by rank
  };

  // What is told to this incarnation only, while it lives and does not stand still.
  void Later(absl::Duration delay, std::function<void()> run);
  absl::Duration Now() const;
  void Connect();
  void Wake();
  void ScheduleWake(absl::Duration when);
  void WakeUp();
  void CountWake();
  bool Act();
  void Report();
  void End(int64_t process_id, int status);
  void EndSoon(int64_t process_id, int status, absl::Duration within);
  void DieAll();
  void RefreshSnapshots(const std::string& job_id);
  std::map<int64_t, telemetry::RankStatus> Heartbeats() const;
  std::vector<int64_t> LivingChildren() const;

  void Do(const megascale::agent::PrepareMemory& action);
  void Do(const megascale::agent::StartProcess& action);
  void Do(const megascale::agent::CheckStore& action);
  void Do(const megascale::agent::KillProcess& action);
  void Do(const megascale::agent::SendToWorker& action);
  void Do(const megascale::agent::SendToHost& action);
  void Do(const megascale::agent::MarkPersisted& action);
  void Do(const megascale::agent::DropMemory& action);
  void StartWorker(const megascale::agent::StartProcess& action, Child* child);
  void StartHost(const megascale::agent::StartProcess& action, Child* child);

  const Cluster cluster_;
  World& world_;
  const std::string node_id_;
  const int num_slots_;
  const absl::Duration clock_offset_;  // monotonic clocks of machines differ
  const double clock_rate_;            // and so do their seconds

  bool removed_ = false;
  int num_incarnations_ = 0;
  std::unique_ptr<megascale::agent::AgentCore> core_;
  std::map<int64_t, Child> children_;
  std::map<std::string, Memory> memory_;
  std::shared_ptr<Network::Connection> connection_;
  int num_pids_ = 0;
  bool changed_ = true;
  absl::Duration reported_;
  absl::Duration counting_since_;  // of wakes
  int num_wakes_ = 0;              // since then
  absl::Duration wake_at_ = absl::InfiniteDuration();
  absl::Duration stalled_until_ = absl::ZeroDuration();
  std::vector<std::function<void()>> deferred_;  // until then, in order
  absl::Duration kill_delay_ = absl::ZeroDuration();
  std::optional<int64_t> actions_left_;
  bool fail_next_start_ = false;
  bool fail_next_prepare_ = false;
};

}  // namespace megascale::sim
