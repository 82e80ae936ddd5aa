// The people of a simulation: they submit jobs, ask how they are, cancel some, empty a machine by
// hand and give it back, and ask again when no answer comes.
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

  // They come within `within`. With `evicted_node`, that one is emptied for a while.
  void Start(absl::Duration within, const std::string& evicted_node);
  // Every submit and cancel was acknowledged, or the job had ended before its cancel.
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
  void Ask();

  World& world_;
  DriverNode& driver_;
  std::vector<Job> jobs_;
  int num_open_ = 0;
};

}  // namespace megascale::sim
