// Restores a rank's state from a checkpoint on storage, for a job on several machines. If a machine
// cannot read a part of the checkpoint, a rank on another machine reads it and sends it. All ranks
// take part:
//
//   1. Each rank reads its own slices and notes which of them it cannot read.
//   2. The ranks tell each other, group by group, whether any of them lacks something. The restore
//      ends here once every rank has everything. Otherwise an all-gather of 24 bytes per rank tells
//      who lacks what.
//   3. Each rank that lacks slices gets a reader: a rank on another machine. Ranks that read all of
//      their own slices are chosen first, among these the ranks that read for the fewest others,
//      and among those the next rank in the order of ranks. All ranks compute the same choice. The
//      reader sends the slices in blocks, over a stream that the two open for it.
//   4. Steps 2 and 3 repeat. A rank never asks the same machine twice.
//
// The restore fails on every rank if a rank has no machine left to ask, or if two machines find the
// same damage in a file (equal wrong bytes).
//
// Threads: the thread that uses the communicator. Blocking: storage and peers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/device/host_window.h"
#include "runtime/engine/peers/all_ranks.h"
#include "runtime/engine/peers/rank_pair.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {

struct RestoreOptions {
  megascale::agent::v1::RestorePoint restore;  // on storage; the same on all ranks
  int rank = 0;
  std::vector<std::string> nodes;        // node id of each rank
  const AllRanks* all = nullptr;         // no step may be running
  ConnectPair connect;                   // the pair's calls have its fabric's timeout
  device::HostWindow* window = nullptr;  // into the memory of `state`
  // Returns the slices of another rank, in the order of its own `state`, without memory.
  std::function<absl::StatusOr<std::vector<optim::StateSlice>>(int rank)> layout_of;
  // Limit of each wait for a peer. Must be longer than the failure detector's limit for a rank that
  // loads: a reader that stalls is then blamed before the ranks that wait for it give up.
  absl::Duration timeout = absl::Minutes(10);
  telemetry::HeartbeatWriter* heartbeat = nullptr;  // null: progress is not shown
};

// Overwrites the memory of `state`, the slices of this rank. Returns a warning for people if a peer
// read for this rank: the file, the error and the machine that read it instead; otherwise an empty
// text. Errors: DataLoss - this rank and all machines that it asked could not read its slices, or
// this rank could not read slices that another rank still lacks; ResourceExhausted - as
// RestoreState; Aborted - the restore failed on other ranks, which the message names, or a peer is
// gone. Cost: a number through each group, and for each round of readers another one and 24 bytes
// per rank; the missing slices are sent once; 1 MiB of memory on a reader.
absl::StatusOr<std::string> RestoreWithPeers(const RestoreOptions& options,
                                             const std::vector<optim::StateSlice>& state);

}  // namespace megascale::engine
