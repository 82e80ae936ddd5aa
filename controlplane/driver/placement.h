// Which node runs which rank. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

struct PlacementResult {
  // In rank order; empty: there are not enough slots, and `message` says what is missing:
  // "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 2 nodes offer 3 (n0 2, n1 1)".
  std::vector<megascale::agent::v1::Placement> placements;
  std::string instruction_set;
  std::string message;
};

// Places the job on nodes that take ranks and have one instruction set: the job's own where it has
// one, else the first (by node id) that has enough free slots. Ranks keep the node that they had
// while it takes ranks and has room; the others fill nodes in the order of their ids with
// consecutive ranks. Tensor-parallel peers share a node. Slots of every other job that holds some
// are taken, but for those of the jobs in `givers`.
PlacementResult PlaceJob(const DriverState& state, const JobRecord& job,
                         const std::set<std::string>& givers = {});

// As job::NeededSlots, "in groups of 2 on one node" where tensor-parallel peers share one.
std::string NeededSlots(const JobRecord& job);

}  // namespace megascale::driver
