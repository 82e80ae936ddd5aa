// Computes the desired state of each agent from the driver's state. Pure: it depends on the state
// alone and not on the newest event, so a restarted driver sends the same desired states as the one
// before it. Threads: plain objects.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

// The desired states of all agents, for one state of the driver. The part that all agents of a job
// have in common is made once, so that asking whether anything changed for each of thousands of
// nodes is cheap.
class DesiredStates {
 public:
  // Requires: `state` outlives the object and does not change.
  explicit DesiredStates(const DriverState& state);

  // Returns the desired state of the agent of `node_id`. It lists every job that has ranks there,
  // or had ranks whose snapshots may still be needed. `version` is
  // VersionOfEvent(state.num_events()); the caller sets acked_step, because loss logs are not part
  // of the state. An unknown node has no jobs. `known`: the attempt of each job that the agent has
  // reported; fields that stay the same during this attempt are left out (DesiredJob.as_before).
  megascale::agent::v1::DesiredState For(const std::string& node_id,
                                         const std::map<std::string, int64_t>& known = {}) const;

  // Returns a text to compare desired states by: the texts of two states of the driver are equal if
  // and only if For returns the same for both, given the same `known`, except for `version`.
  std::string Fingerprint(const std::string& node_id) const;

 private:
  struct Part {  // desired state of a job that holds slots
    const JobRecord* job = nullptr;
    std::vector<std::string> nodes;            // sorted
    std::string first_node;                    // node of rank 0
    megascale::agent::v1::DesiredJob attempt;  // fields that stay the same during an attempt
    megascale::agent::v1::DesiredJob common;   // other fields that are equal for all agents
    std::string print;                         // covers `attempt` and `common`
    std::string first_print;                   // covers fields for the agent of rank 0 only
  };
  std::vector<const Part*> PartsOf(const NodeRecord& node) const;
  bool WantsTest(const NodeRecord& node) const;

  const DriverState& state_;
  std::set<std::string> busy_;  // BusyNodes, if a test is due
  std::vector<Part> parts_;
};

}  // namespace megascale::driver
