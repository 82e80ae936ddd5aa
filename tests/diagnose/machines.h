// Machines on this machine: each has a network namespace with an address of its own and a control
// group with a quota of processor time, and each agent a mount namespace, so that a fault lands on
// one of them alone. The test's own process moves to a new network namespace, in which a bridge
// joins the links of all machines; the control plane talks over a Unix socket, which namespaces do
// not separate, as a cluster's management network is apart from that of its tensors.
//
// Namespaces end with the processes in them, and these with the test, however it ends. Groups are
// removed by the destructor; groups that a killed test has left behind, by the next test.
// Threads: one. Needs root, `ip`, `tc` and `nsenter`.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace megascale::injection {

// A direction of a machine's link.
enum class Way { kFrom, kTo, kBoth };

class Machines {
 public:
  // Creation fails if a tool or a privilege is missing: status() says which.
  explicit Machines(int count);
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  const absl::Status& status() const { return status_; }

  int count() const { return static_cast<int>(machines_.size()); }
  // The command that runs its arguments on a machine.
  std::vector<std::string> Prefix(int machine) const;
  std::string Address(int machine) const;
  // The address of this test, which all machines reach.
  static std::string OwnAddress() { return "10.77.0.254"; }
  // Where the switches of its ranks' devices lie (paced_device.h).
  const std::string& switches(int machine) const { return At(machine).switches; }
  void SetSwitch(int machine, const std::string& name, const std::string& text);

  // Limits the processor time of all processes of a machine, in percent of a core; 0: no limit.
  void LimitCores(int machine, double percent);
  // Limits its link, both ways.
  void LimitLink(int machine, double mbit);
  void CutLink(int machine);
  // Drops all packets from a machine, to it, or both, until Unblock.
  void Block(int machine, Way way);
  void Unblock(int machine);
  // Drops all packets from one machine to another one. Both still reach everybody else.
  void Swallow(int from, int to);
  // Mounts a full disk at this folder for the processes that share the mount namespace of
  // `process`: those of an agent that was started on a machine.
  void FillDisk(pid_t process, const std::string& directory);
  // Keeps the processors of a machine busy, within its quota.
  void StartLoad(int machine, int num_processes);
  // Sends datagrams to and from a machine, with this program.
  void StartTraffic(int machine, const std::string& program, double mbit);

 private:
  struct Machine {
    pid_t holder = -1;  // the process that keeps the namespace
    std::string group;
    int group_version = 1;
    std::string switches;
  };
  const Machine& At(int machine) const { return machines_[static_cast<size_t>(machine)]; }
  void Enter();
  void Add(int index);
  void MakeGroup(Machine* machine);
  void Do(const std::vector<std::string>& command);
  // Runs `tc qdisc VERB dev LINK root MORE…` at an end of the machine's link.
  void DoQueue(int machine, Way way, const std::string& verb, const std::vector<std::string>& more);
  void RemoveGroup(const std::string& group) const;

  std::string directory_;  // of the switches
  absl::Status status_;
  std::vector<Machine> machines_;
  std::vector<pid_t> children_;  // load and traffic
};

}  // namespace megascale::injection
