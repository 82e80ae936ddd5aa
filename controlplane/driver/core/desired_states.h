// Computes the desired state of each agent from the driver's state. Pure: it depends on the state
// alone and not on the newest event, so a restarted driver sends the same desired states as the one
// before it. Threads: plain objects.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "controlplane/driver/core/job_index.h"

namespace megascale::driver {

// What the desired states of all agents of a job have in common. It is made once, and again only
// after the job was touched, so that asking whether anything changed for thousands of nodes is
// cheap.
class DesiredParts {
 public:
  struct Part {
    int64_t number = -1;                       // of the attempt
    int num_ranks = 0;                         // placed
    megascale::agent::v1::DesiredJob attempt;  // fields that stay the same during an attempt
    std::string attempt_print;                 // covers `attempt`
    megascale::agent::v1::DesiredJob common;   // other fields that are equal for all agents
    std::string print;                         // covers `attempt` and `common`
    std::string first_print;                   // covers fields for the agent of rank 0 only
  };
  // Returns the part of a job that holds slots. The part is valid until the job is touched.
  const Part& Of(const JobRecord& job);
  // Call when events have touched jobs. Returns the nodes whose agents may need another desired
  // state now. If touched.all_node_records is true, all nodes may need one.
  std::set<std::string> Update(const IndexedState& state, const JobIndex::Touched& touched);

 private:
  // Returns false if nothing changed that the agents of the job are told.
  bool Refresh(const JobRecord& job);
  static void Make(const JobRecord& job, Part* part);

  std::unordered_map<std::string, Part> parts_;  // by job
};

// The desired states of all agents, for one state of the driver.
class DesiredStates {
 public:
  // Requires: the arguments outlive the object, and the state does not change. `parts` has no job
  // that was touched since its last Update.
  DesiredStates(const DriverState& state, const JobIndex& index, DesiredParts* parts);
  // Makes the index and the parts.
  explicit DesiredStates(const DriverState& state);

  // Returns the desired state of the agent of `node_id`. It lists every job that has ranks there,
  // or had ranks whose snapshots may still be needed. `version` is
  // VersionOfEvent(state.num_events()); the caller sets acked_step and step_duty, because loss logs
  // and silence are not part of the state. An unknown node has no jobs. `known`: the attempt of
  // each job that the agent has reported; fields that stay the same during this attempt are left
  // out (DesiredJob.as_before).
  megascale::agent::v1::DesiredState For(const std::string& node_id,
                                         const std::map<std::string, int64_t>& known = {}) const;

  // Returns a text to compare desired states by: the texts of two states of the driver are equal if
  // and only if For returns the same for both, given the same `known`, except for `version`.
  std::string Fingerprint(const std::string& node_id) const;

 private:
  // Returns the jobs that the agent is told of.
  std::vector<const JobRecord*> JobsOf(const NodeRecord& node) const;
  // Whether the node's host process deletes the checkpoints of this job, which is about to end.
  bool Retains(const JobRecord& job, const std::string& node_id) const;
  bool WantsTest(const NodeRecord& node) const;

  const DriverState& state_;
  std::optional<JobIndex> own_index_;
  const JobIndex& index_;
  mutable DesiredParts own_parts_;
  DesiredParts& parts_;
  std::set<std::string> busy_;  // BusyNodes, if a test is due
};

}  // namespace megascale::driver
