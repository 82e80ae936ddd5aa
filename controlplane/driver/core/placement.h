// Decides which node runs which rank. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/exchanges/failed_links.h"

namespace megascale::driver {

struct PlacementResult {
  // In rank order. Empty: there are not enough slots, and `message` says which are missing:
  //   "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 2 nodes offer 3 (n0 2, n1 1)"
  std::vector<megascale::agent::v1::Placement> placements;
  std::string instruction_set;
  std::string message;
};

// Places the job on nodes that take ranks and share one instruction set, that of the job's first
// placement, and one numerics version (Hello.numerics_version; nodes that tell none go with all).
// Among several such kinds of nodes it takes the first with enough free slots: first those with
// most of the nodes that the job ran on, then in the order of node ids. A rank keeps its node if
// the node takes ranks and has room; the other ranks fill the nodes in the order of their ids with
// consecutive ranks. Tensor-parallel peers share a node. The slots of other jobs are not free,
// except for those of the jobs in `givers`. Nodes that could not read the job's checkpoint
// (restore_order.h) get ranks only if the other nodes have no room, and so do both ends of a link
// that failed. `failed`: FailedPairs (failed_links.h). Cost: bounded, whatever links failed, so
// that a placement around many links may be overlooked.
PlacementResult PlaceJob(const DriverState& state, const JobRecord& job, const NodePairs& failed,
                         const std::set<std::string>& givers = {});

// Returns the nodes that get no rank now, because they have not passed a test yet or are being
// tested again. A machine whose new test waits for running jobs keeps its ranks meanwhile.
std::set<std::string> NodesInTest(const DriverState& state);

// Returns the nodes of a recovering job whose tests or exchanges the job should wait for: the nodes
// that exchange now; and nodes whose test can run now, if they are tested again or hold snapshots
// of the job.
std::set<std::string> TestsToWaitFor(const DriverState& state, const JobRecord& job);

// True when the job fits on the nodes that are not in `nodes`.
bool HasRoomWithout(const DriverState& state, const JobRecord& job,
                    const std::set<std::string>& nodes);

// Returns the node of each rank if no other job had slots and no node were being tested; empty: the
// job would not fit even then.
std::vector<std::string> NodesIfAlone(const DriverState& state, const JobRecord& job);

// True when the job would not fit even if no other job had slots.
bool NeedsMoreThanThereIs(const DriverState& state, const JobRecord& job);

// Returns job::NeededSlots; with tensor parallelism it adds "in groups of 2 on one node".
std::string NeededSlots(const JobRecord& job);

}  // namespace megascale::driver
