// One machine: the production AgentCore, with a shell that does for simulated processes and memory
// what controlplane/agent/agent_loop does for real ones. A test can end the agent before any of its
// actions; its processes and its memory end with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controlplane/agent/core/agent_core.h"
#include "controlplane/agent/core/repeater.h"
#include "controlplane/agent/service/store_forwarder.h"
#include "runtime/base/process/shared_memory.h"
#include "tests/sim/host_process.h"
#include "tests/sim/network.h"
#include "tests/sim/worker_process.h"
#include "tests/sim/world.h"

namespace megascale::sim {

// Objects that all machines share.
struct Cluster {
  World* world = nullptr;
  Network* network = nullptr;
  Collective* collective = nullptr;
  CheckpointStorage* storage = nullptr;
};

class AgentNode {
 public:
  // What an agent tells about itself.
  struct Identity {
    std::string node_id;
    int num_slots = 1;
    int copy = 0;         // not 0: an agent on another machine with the node id of the first one
    bool is_old = false;  // of a version that tests no machines and knows no duties
    std::string numerics = {};  // its numerics version; empty: it does not tell
  };
  AgentNode(const Cluster& cluster, Identity identity);

  void Start();
  bool up() const { return core_ != nullptr; }
  const std::string& node_id() const { return node_id_; }
  int num_slots() const { return identity_.num_slots; }

  // Ends the agent, and starts it as a new incarnation after `away`.
  void Crash(absl::string_view why, absl::Duration away);
  // Before Start: the numerics version that it tells.
  void SetNumerics(const std::string& numerics) { identity_.numerics = numerics; }
  // Ends the agent; it comes back with this numerics version.
  void Upgrade(const std::string& numerics, absl::Duration away);
  // Removes the machine for good.
  void Remove();
  // Ends the agent before the n-th action from now on (1: the next).
  void CrashAtAction(int64_t number) { actions_left_ = number; }
  // Kill or hang a random worker or host process; false: there is no process.
  bool KillSomething();
  bool HangSomething();
  // Makes the next start of a process, or the next allocation of memory, fail.
  void FailNextStart() { fail_next_start_ = true; }
  void FailNextPrepare() { fail_next_prepare_ = true; }
  // Makes killed processes end only after this time, as if they hung in a device.
  void DelayKills(absl::Duration by) { kill_delay_ = by; }
  // Makes the next process that is killed end only after this time.
  void HangKills(absl::Duration by) { hung_kill_ = by; }
  // Asks the agent to end once its jobs have left; after `limit` it ends anyway. It comes back
  // after `away`.
  void Drain(absl::Duration limit, absl::Duration away);
  bool drains() const { return up() && drain_away_.has_value(); }
  // Changes bytes of all snapshots that the agent holds.
  void DamageMemory();
  // Stops the agent for this long; its processes go on. `repeats`: only its loop is busy, and its
  // newest report is repeated.
  void Stall(absl::Duration how_long, bool repeats = false);

 private:
  struct Child {
    ProcessName name;
    std::shared_ptr<WorkerProcess> worker;  // either worker or host is set
    std::shared_ptr<HostProcess> host;
    int pid = 0;
    bool killed = false;  // by an action, while it lived
  };
  struct Memory {
    int64_t attempt = 0;
    std::map<int, std::shared_ptr<base::SharedMemory>> snapshots;  // by rank
  };

  // Runs `run` after `delay`, if this incarnation still lives; while it is stalled, `run` waits.
  void Later(absl::Duration delay, std::function<void()> run);
  absl::Duration Now() const;
  std::string MachineName() const;
  std::string IncarnationName() const;
  void Connect();
  void MakeForwarder();
  void Wake();
  void ScheduleWake(absl::Duration when);
  void WakeUp();
  void CountWake();
  bool EndIfDrained();
  void EndAgent(absl::string_view why, Harm harm, absl::Duration away);
  bool Act();
  void Report();
  void Repeat();
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
  void Do(const megascale::agent::StartTest& action);
  void StartExchange(int64_t process_id, const agent::MachineTestRequest& request);
  void AdvanceExchange(int64_t process_id, const agent::MachineTestRequest& request,
                       absl::Duration until);
  void EndTest(int status);
  void StartWorker(const megascale::agent::StartProcess& action, Child* child);
  void StartHost(const megascale::agent::StartProcess& action, Child* child);

  const Cluster cluster_;
  World& world_;
  Identity identity_;
  const std::string& node_id_ = identity_.node_id;
  const absl::Duration clock_offset_;  // the machines' monotonic clocks differ
  const double clock_rate_;            // and run at different rates

  bool removed_ = false;
  int num_incarnations_ = 0;
  std::unique_ptr<megascale::agent::AgentCore> core_;
  std::unique_ptr<megascale::agent::StoreForwarder> forwarder_;
  std::map<int64_t, Child> children_;
  int64_t test_process_ = 0;  // 0: no test of the machine runs
  bool test_killed_ = false;
  bool test_is_exchange_ = false;
  std::map<std::string, Memory> memory_;
  std::shared_ptr<Network::Connection> connection_;
  int num_pids_ = 0;
  bool taken_ = false;                        // the driver has accepted this incarnation
  std::optional<absl::Duration> drain_away_;  // set: it was asked to end
  bool changed_ = true;
  absl::Duration reported_;
  absl::Duration counting_since_;
  int num_wakes_ = 0;  // since counting_since_
  absl::Duration wake_at_ = absl::InfiniteDuration();
  absl::Duration stalled_until_ = absl::ZeroDuration();
  megascale::agent::Repeater repeater_;
  std::vector<std::function<void()>> deferred_;  // to run after the stall, in order
  absl::Duration kill_delay_ = absl::ZeroDuration();
  absl::Duration hung_kill_ = absl::ZeroDuration();
  std::optional<int64_t> actions_left_;
  bool fail_next_start_ = false;
  bool fail_next_prepare_ = false;
};

}  // namespace megascale::sim
