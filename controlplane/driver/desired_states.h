// What agents are to do, as it follows from a state. Pure: nothing is sent "because of" an event,
// so a restarted driver sends the same as the one before it. Threads: plain objects.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

// Of all agents, for one state. What all agents of a job are told alike is made once, so that
// asking for each of thousands of nodes whether anything is new for it costs little.
class DesiredStates {
 public:
  // `state` outlives the object and stays as it is.
  explicit DesiredStates(const DriverState& state);

  // What the agent of `node_id` is to do: every job that has a part there, or had one whose memory
  // is still of use. `version` is VersionOfEvent(state.num_events()); acked_step is left to the
  // caller, because loss logs are no part of the state. An unknown node has no jobs. `known`: the
  // attempt that the agent reported of each job; what stays the same during it is left out.
  megascale::agent::v1::DesiredState For(const std::string& node_id,
                                         const std::map<std::string, int64_t>& known = {}) const;

  // Equal texts, of any two states: For gives the same but for the version, if the same is known.
  std::string PrintOf(const std::string& node_id) const;

 private:
  struct Part {  // of a job that holds slots
    const JobRecord* job = nullptr;
    std::vector<std::string> nodes;            // sorted
    std::string first_node;                    // of rank 0
    megascale::agent::v1::DesiredJob attempt;  // what stays the same during it
    megascale::agent::v1::DesiredJob common;   // the rest of what all agents of the job are told
    std::string print;                         // of both
    std::string first_print;                   // of what the agent of rank 0 is told besides
  };
  std::vector<const Part*> PartsOf(const NodeRecord& node) const;

  const DriverState& state_;
  std::vector<Part> parts_;
};

// DesiredStates(state).For(node_id).
megascale::agent::v1::DesiredState DesiredFor(const DriverState& state, const std::string& node_id);

}  // namespace megascale::driver
