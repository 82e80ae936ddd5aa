// A real Slurm on this machine for tests: munge, a controller, and some nodes that are all this
// machine, on free ports and in a folder of its own. Everything ends with the object.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"

namespace megascale::slurm {

class SlurmCluster {
 public:
  // Starts nodes n1, n2 … and waits until they are idle.
  explicit SlurmCluster(int num_nodes);
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  // False: this machine has no Slurm, or this user may not run its nodes.
  static bool IsInstalled();

  // Runs a command as a user of this cluster.
  e2e::CommandResult Run(const std::vector<std::string>& command, int seconds_max = 120) const;
  // Returns what a command prints, without the last newline.
  std::string Out(const std::vector<std::string>& command) const;
  // Returns the state of a job as squeue writes it: "R", "PD"; "": it has ended.
  std::string StateOf(const std::string& job_id) const;

  // Kills a node's daemon with all that runs there.
  void KillNode(int index);
  void StartNode(int index);

  const std::string& folder() const { return folder_; }

 private:
  void WriteConfiguration(int num_nodes);
  std::string Log(const std::string& name) const { return folder_ + "/log/" + name; }

  std::string folder_;
  std::map<std::string, std::string> environment_;
  pid_t munge_ = -1;
  pid_t controller_ = -1;
  std::map<int, pid_t> nodes_;
};

}  // namespace megascale::slurm
