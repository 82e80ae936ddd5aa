// The shared memory of one job on one machine: what an agent must make before it starts processes.
// Sizes follow from the job's specification and the placement alone. Threads: plain functions.
// Ownership: the caller owns all regions; they vanish with the last process that maps them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/base/shared_memory.h"

namespace megascale::job {

// What the agent needs to place one attempt of a job on this machine.
struct NodeRequest {
  std::string job_id;
  const megascale::job::v1::JobSpec* spec = nullptr;        // resolved
  std::vector<megascale::agent::v1::Placement> placements;  // of all ranks
  std::string node_id;                                      // this machine
  int64_t attempt = 0;
  int64_t first_step = 0;  // completed steps at the start of the attempt
};

struct LocalRank {
  int rank = 0;
  int heartbeat_slot = 0;
  bool has_batch_ring = false;  // first and last pipeline stages read batches
  int batch_reader = 0;
};

// Memory that belongs to one attempt. The host process may be restarted on it.
struct AttemptMemory {
  std::unique_ptr<base::SharedMemory> heartbeats;  // slots of the local ranks, then the host's
  std::unique_ptr<base::SharedMemory> comm;        // formatted for comm::Fabric
  std::unique_ptr<base::SharedMemory>
      ring;                      // formatted for data::BatchRing; null when no local rank reads
  std::vector<LocalRank> ranks;  // in rank order
  int host_heartbeat_slot = 0;
};

// Makes and formats the regions of one attempt. Errors: ResourceExhausted - no memory, with the
// sum.
absl::StatusOr<AttemptMemory> MakeAttemptMemory(const NodeRequest& request);

// Makes the double-buffered snapshot region of one rank; it outlives attempts.
absl::StatusOr<std::unique_ptr<base::SharedMemory>> MakeSnapshotMemory(
    const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::job
