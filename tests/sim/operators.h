// The operators of a simulation. They submit jobs, ask for their status, cancel some, evict and
// uncordon a node, and repeat a request when no answer comes. In a storm they also stand for the
// driver's examination of jobs, which reads spans that a simulation does not have: it suspects any
// rank of a job that trains, rightly or not.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/driver_node.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class Operators {
 public:
  // Draws the jobs; each fits into `num_slots` slots, `tensor_max` of which are on one machine.
  Operators(World* world, DriverNode* driver, int num_slots, int tensor_max);

  // Makes all submits within `within`. `evicted_node`: a node to evict for a while; empty: no node.
  void Start(absl::Duration within, const std::string& evicted_node);
  // True when every submit and cancel was acknowledged, or the job had ended before its cancel.
  bool done() const { return num_open_ == 0; }
  size_t num_jobs() const { return jobs_.size(); }

 private:
  struct Job {
    driver::v1::JobSubmitted submit;
    std::optional<driver::v1::CancelRequested> cancel;
    bool submitted = false;  // acknowledged
    bool cancelled = false;  // acknowledged, or it had ended
  };

  megascale::job::v1::JobSpec DrawSpec(int num_slots, int tensor_max);
  void Submit(size_t index);
  void Cancel(size_t index);
  void SetEvicted(const std::string& node_id, bool evicted, std::shared_ptr<bool> answered);
  void Uncordon();
  void Suspect(const std::string& job_id);
  void Ask();

  World& world_;
  DriverNode& driver_;
  Rng suspicions_;  // apart, so that seeds without suspicions run as without them
  std::vector<Job> jobs_;
  int num_open_ = 0;
};

}  // namespace megascale::sim
