// The operators of a simulation. They submit jobs, ask for their status, list them, cancel some,
// evict and uncordon a node, make one a spare, and repeat a request when no answer comes. In a
// storm they also stand for the driver's examination of jobs, which reads spans that a simulation
// does not have: it suspects any rank of a job that trains, rightly or not.
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
  struct Options {
    int num_slots = 1;   // each job fits into these
    int tensor_max = 1;  // of which are on one machine
    int jobs_max = 4;
    bool draws_evaluations = true;  // false: no job evaluates
    std::string evicted_node = "";  // to evict for a while; empty: no node
    std::string spare_node = "";    // to make a spare; empty: no node
  };
  // Draws the jobs.
  Operators(World* world, DriverNode* driver, Options options);

  // Makes all submits within `within`.
  void Start(absl::Duration within);
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

  megascale::job::v1::JobSpec DrawSpec();
  void DrawEvaluations(Rng* rng, megascale::job::v1::JobSpec* spec);
  void Submit(size_t index);
  void Cancel(size_t index);
  void SetEvicted(const std::string& node_id, bool evicted, std::shared_ptr<bool> answered);
  void MakeSpare(std::shared_ptr<bool> answered);
  // Reads the list of jobs in pages.
  struct Listing {
    std::vector<std::string> expected;  // jobs that were acknowledged before
    bool newest_first = false;
    std::vector<std::string> seen;
  };
  void List(const std::string& token, const std::shared_ptr<Listing>& listing);
  void CheckListing(const Listing& listing);
  void Uncordon();
  void Suspect(const std::string& job_id);
  void Ask();

  World& world_;
  DriverNode& driver_;
  const Options options_;
  Rng suspicions_;  // apart, so that seeds without suspicions run as without them
  std::vector<Job> jobs_;
  int num_open_ = 0;
};

}  // namespace megascale::sim
