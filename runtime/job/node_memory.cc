#include "runtime/job/node_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/comm/region.h"
#include "runtime/data/batch_ring.h"
#include "runtime/engine/chunk_of_rank.h"
#include "runtime/engine/groups.h"
#include "runtime/job/job_spec.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::job {
namespace {

using base::SharedMemory;

// How many steps the loader may be ahead of the slowest reader.
constexpr int kRingSlots = 3;

comm::RegionSpec RegionOf(const NodeRequest& request, const plan::Mesh& mesh) {
  return {.groups = engine::CommunicatorsOf(mesh),
          .placements = engine::NodesByRank(request.placements),
          .node_id = request.node_id,
          .job_id = request.job_id,
          .attempt = request.attempt};
}

// The ring's shape, with readers counted into `ranks`. No data-parallel index: nobody here reads.
data::BatchRingShape RingOf(const v1::JobSpec& spec, const plan::Mesh& mesh,
                            std::vector<LocalRank>* ranks) {
  data::BatchRingShape shape;
  shape.num_slots = kRingSlots;
  shape.num_microbatches = NumMicrobatches(spec);
  shape.micro_batch_size = spec.train().micro_batch_size();
  shape.seq_length = spec.train().seq_length();
  for (LocalRank& local : *ranks) {
    const plan::Coordinate at = mesh.CoordinateOf(local.rank);
    local.has_batch_ring = at.pipeline == 0 || at.pipeline == mesh.pipeline_size() - 1;
    if (!local.has_batch_ring) continue;
    local.batch_reader = shape.num_readers++;
    auto& indices = shape.data_parallel_indices;
    if (std::find(indices.begin(), indices.end(), at.data) == indices.end()) {
      indices.push_back(at.data);
    }
  }
  return shape;
}

std::vector<LocalRank> RanksOn(const NodeRequest& request) {
  std::vector<LocalRank> ranks;
  for (const auto& placement : request.placements) {
    if (placement.node_id() == request.node_id) ranks.push_back({.rank = placement.rank()});
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const LocalRank& a, const LocalRank& b) { return a.rank < b.rank; });
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i].heartbeat_slot = static_cast<int>(i);
  return ranks;
}

}  // namespace

absl::StatusOr<AttemptMemory> MakeAttemptMemory(const NodeRequest& request) {
  const v1::JobSpec& spec = *request.spec;
  ASSIGN_OR_RETURN(const plan::Mesh mesh, engine::MeshOf(spec));
  AttemptMemory memory;
  memory.ranks = RanksOn(request);
  const int num_ranks = static_cast<int>(memory.ranks.size());
  memory.host_heartbeat_slot = num_ranks;
  ASSIGN_OR_RETURN(
      memory.heartbeats,
      SharedMemory::Create("megascale-heartbeats", telemetry::HeartbeatBytes(num_ranks + 1)));
  telemetry::FormatHeartbeats(*memory.heartbeats);

  const comm::RegionSpec region = RegionOf(request, mesh);
  RETURN_IF_ERROR(comm::ValidateGroups(region.groups, region.placements));
  ASSIGN_OR_RETURN(
      memory.comm,
      SharedMemory::Create("megascale-comm",
                           comm::RegionBytes(region.groups, region.placements, request.node_id)));
  RETURN_IF_ERROR(comm::FormatRegion(region, *memory.comm));

  const data::BatchRingShape ring = RingOf(spec, mesh, &memory.ranks);
  if (ring.num_readers > 0) {
    ASSIGN_OR_RETURN(memory.ring,
                     SharedMemory::Create("megascale-batches", data::BatchRingBytes(ring)));
    data::FormatBatchRing(*memory.ring, ring, request.first_step);
  }
  return memory;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> MakeSnapshotMemory(const v1::JobSpec& spec,
                                                                 int rank) {
  ASSIGN_OR_RETURN(const int64_t payload, engine::SnapshotPayloadBytes(spec, rank));
  ASSIGN_OR_RETURN(auto region, SharedMemory::Create(absl::StrCat("megascale-snapshots-", rank),
                                                     checkpoint::SnapshotBytes(payload)));
  checkpoint::FormatSnapshots(*region, rank);
  return region;
}

}  // namespace megascale::job
