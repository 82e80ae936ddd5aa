// The memory of one job on one machine: its size, and the shared regions that an agent must make
// before it starts processes. Sizes follow from the job's specification and the placement alone.
// Threads: plain functions. Ownership: the caller owns all regions; they vanish with the last
// process that maps them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/host/connect.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/layout/rank_memory.h"
#include "runtime/plan/mesh.h"

namespace megascale::layout {

// Describes one attempt of a job that the agent places on this machine.
struct NodeRequest {
  std::string job_id;
  const megascale::job::v1::JobSpec* spec = nullptr;        // resolved
  std::vector<megascale::agent::v1::Placement> placements;  // of all ranks
  std::string node_id;                                      // this machine
  int64_t attempt = 0;
  int64_t first_step = 0;  // steps completed before the attempt
};

struct LocalRank {
  int rank = 0;
  int heartbeat_slot = 0;
  bool has_batch_ring = false;  // the first and last pipeline stages read batches
  int batch_reader = 0;
};

// The memory that a job needs on one machine, computed before anything is made or started. Bytes.
struct NodeMemory {
  // A rank's streams to other machines, for one of its groups.
  struct Connections {
    absl::string_view group = "";  // "data"
    int num_members = 0;
    int64_t count = 0;  // one for each channel and member elsewhere
    int64_t bytes = 0;  // of their rings
  };
  struct Rank {
    int rank = 0;
    RankMemory memory;
    std::vector<Connections> connections = {};  // groups that have some

    int64_t num_connections() const;
    // The most that its process has open at a time.
    int64_t num_descriptors() const { return num_connections() + comm::kDescriptorsBesideStreams; }
  };
  std::vector<Rank> ranks;  // ranks on this machine, in order
  // Whether the ranks' devices compute in the machine's memory, as processors do. False: the parts
  // in RankMemory::on_device lie in the memory of each rank's own device.
  bool device_is_host = true;
  int64_t collectives = 0;  // shared memory for communication between ranks
  int64_t snapshots = 0;    // both buffers of each rank
  int64_t batch_ring = 0;   // slots for the steps that the loader may read ahead
  int64_t telemetry = 0;    // heartbeats and spans
  int64_t host = 0;         // the host process: an upper bound, without cached files

  int64_t sum() const;  // of the machine's memory
};

// The memory of a job's machines, computed before anything starts. What the ranks of a role share
// is computed once: a plan for each pipeline stage, and a layout for each tensor rank of a stage.
// So many replicas cost little more than one. Threads: one at a time.
class JobMemory {
 public:
  // Requires: `spec` outlives this object. Errors: InvalidArgument - the specification cannot be
  // run.
  static absl::StatusOr<JobMemory> Create(const megascale::job::v1::JobSpec& spec);

  // As MemoryOfNode.
  absl::StatusOr<NodeMemory> OfMachine(const std::vector<int>& ranks);
  // The part of OfMachine that CheckDescriptors and CheckRings look at, everything else 0.
  // Requires: the job has the ranks. Cost: the number of ranks, since no plan and no shard is made.
  NodeMemory ExchangesOfMachine(const std::vector<int>& ranks) const;

  // Returns how many plans of a step, layouts, and lists of a shard's slices were made.
  size_t num_plans() const { return of_stage_.size(); }
  size_t num_layouts() const { return layouts_.size(); }
  size_t num_shards() const { return snapshot_bytes_.size(); }

 private:
  JobMemory(const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh)
      : spec_(&spec), mesh_(mesh) {}

  // Returns the rank's memory but for its communicators: all ranks of its stage need the same.
  absl::StatusOr<RankMemory> OfRank(int rank);
  absl::StatusOr<int64_t> SnapshotBytesOf(int rank);
  // Fills in the communicators of the ranks, and the memory that they share for collectives.
  void AddExchanges(NodeMemory* memory) const;

  const megascale::job::v1::JobSpec* spec_;
  plan::Mesh mesh_;
  std::map<plan::GroupKind, std::map<size_t, size_t>> num_rings_;  // channels by ring_bytes
  std::map<int, RankMemory> of_stage_;
  std::map<std::pair<int, int>, RankLayout> layouts_;  // by stage and tensor rank, of any replica
  std::map<int, int64_t> snapshot_bytes_;              // by rank
};

// Computes the memory of a machine that runs `ranks`. How the other ranks are placed on the other
// machines does not matter. Errors: InvalidArgument - the specification cannot be run, or has no
// such rank.
absl::StatusOr<NodeMemory> MemoryOfNode(const megascale::job::v1::JobSpec& spec,
                                        const std::vector<int>& ranks);
// Computes the memory of a single machine that runs all ranks.
absl::StatusOr<NodeMemory> MemoryOfJob(const megascale::job::v1::JobSpec& spec);

// Checks `needed` against `limit`; returns OK if the limit is unknown (nullopt). Errors:
// FailedPrecondition - `needed` is more than `limit` has available; the message has every part, the
// sum, the limit and its source.
absl::Status CheckMemory(const NodeMemory& needed, const std::optional<base::MemoryLimit>& limit);

// Checks the descriptors of each rank against `limit`. Errors: FailedPrecondition - a rank needs
// more; the message has every group with its members, the sum and the limit.
absl::Status CheckDescriptors(const NodeMemory& needed, int64_t limit);

// Checks the rings of communicators alone, as CheckMemory does everything. The message has every
// kind of group with its members.
absl::Status CheckRings(const NodeMemory& needed, const std::optional<base::MemoryLimit>& limit);

// Checks the memory of the ranks' devices. Each device has the memory `device`; `device.source`
// names the devices. Returns OK if the devices compute in the machine's memory, because CheckMemory
// counts that. Errors: FailedPrecondition - a rank needs more; the message is like CheckMemory's.
absl::Status CheckDeviceMemory(const NodeMemory& needed, const base::MemoryLimit& device);

// Memory that belongs to one attempt. A restarted host process uses it again.
struct AttemptMemory {
  std::shared_ptr<base::SharedMemory> heartbeats;  // slots of the local ranks, then the host's
  // Rings and exchange boards of the local ranks, numbered alike.
  std::unique_ptr<base::SharedMemory> spans;
  std::unique_ptr<base::SharedMemory> comm;  // formatted for comm::Fabric
  std::unique_ptr<base::SharedMemory>
      ring;                      // formatted for data::BatchRing; null when no local rank reads
  std::vector<LocalRank> ranks;  // in rank order
  int host_heartbeat_slot = 0;
};

// Makes and formats the regions of one attempt. Errors: ResourceExhausted - not enough memory; the
// message has the sum.
absl::StatusOr<AttemptMemory> MakeAttemptMemory(const NodeRequest& request);

// Makes the double-buffered snapshot region of one rank; it outlives attempts.
absl::StatusOr<std::unique_ptr<base::SharedMemory>> MakeSnapshotMemory(
    const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::layout
