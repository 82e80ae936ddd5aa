// The machines of one launch on Slurm: the nodes of its first job, which runs the launch itself,
// and one job of one node for each later request, whose comment is the request's id.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/nodes/node_source.h"
#include "controlplane/nodes/slurm/slurm.h"

namespace megascale::nodes {

struct SlurmLaunch {
  std::string job_id = {};                // of the first job
  std::string name = {};                  // its name
  std::vector<std::string> options = {};  // of sbatch, for every job
  std::string machine_script = {};        // for a job of one node
  std::string log = {};                   // where that job's output goes, with sbatch's patterns
};

// Returns the name of the jobs that are asked for one machine.
std::string MachineJobName(const std::string& launch_name);

class SlurmSource : public NodeSource {
 public:
  // `slurm` must outlive it.
  SlurmSource(Slurm* slurm, SlurmLaunch launch) : slurm_(slurm), launch_(std::move(launch)) {}

  absl::StatusOr<std::vector<Machine>> Observe() override;
  absl::Status Ask(const Request& request) override;
  absl::Status GiveBack(const Machine& machine) override;

  // Withdraws and ends all jobs of one machine; with `terminate`, only asks their agents to drain.
  absl::Status EndMachines(bool terminate);

  // The time until Slurm ends the first job, as of the last Observe. Infinite: no limit.
  absl::Duration time_left() const { return time_left_; }
  // The node list of the first job, as of the last Observe.
  const std::string& node_list() const { return node_list_; }

 private:
  absl::Status AddMachines(const SlurmJob& job, std::vector<Machine>* machines);

  Slurm* const slurm_;
  const SlurmLaunch launch_;
  absl::Duration time_left_ = absl::InfiniteDuration();
  std::string node_list_;
};

}  // namespace megascale::nodes
