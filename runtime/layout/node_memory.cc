#include "runtime/layout/node_memory.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/comm/host/region.h"
#include "runtime/data/batches/batch_ring.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/ring_sizes.h"
#include "runtime/telemetry/exchange_board.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::layout {
namespace {

using base::SharedMemory;

// A host process holds its program, one shard that is being written to storage, and the corpus in
// pages that the kernel can drop.
constexpr int64_t kHostBytes = 64 << 20;

// Steps that the loader may be ahead of the slowest reader.
constexpr int kRingSlots = 3;

absl::StatusOr<comm::RegionSpec> RegionOf(const NodeRequest& request, const plan::Mesh& mesh) {
  const std::vector<std::string> nodes = NodesByRank(request.placements);
  ASSIGN_OR_RETURN(std::vector<comm::GroupSpec> groups,
                   CommunicatorsOf(*request.spec, mesh, RanksOn(nodes, request.node_id)));
  return comm::RegionSpec{.groups = std::move(groups),
                          .placements = nodes,
                          .node_id = request.node_id,
                          .job_id = request.job_id,
                          .attempt = request.attempt};
}

// Returns the ring's shape, and numbers the readers in `ranks`. Without data-parallel indices no
// local rank reads.
data::BatchRingShape RingOf(const job::v1::JobSpec& spec, const plan::Mesh& mesh,
                            std::vector<LocalRank>* ranks) {
  data::BatchRingShape shape;
  shape.num_slots = kRingSlots;
  shape.num_microbatches = job::NumMicrobatches(spec);
  shape.micro_batch_size = spec.train().micro_batch_size();
  shape.seq_length = spec.train().seq_length();
  for (LocalRank& local : *ranks) {
    const plan::Coordinate at = mesh.CoordinateOf(local.rank);
    local.has_batch_ring = at.pipeline == 0 || at.pipeline == mesh.pipeline_size() - 1 ||
                           job::AttendsWithinDocuments(spec);
    if (!local.has_batch_ring) continue;
    local.batch_reader = shape.num_readers++;
    auto& indices = shape.data_parallel_indices;
    if (std::find(indices.begin(), indices.end(), at.data) == indices.end()) {
      indices.push_back(at.data);
    }
  }
  return shape;
}

std::vector<LocalRank> LocalRanks(const NodeRequest& request) {
  std::vector<LocalRank> ranks;
  for (const int rank : RanksOn(NodesByRank(request.placements), request.node_id)) {
    ranks.push_back({.rank = rank, .heartbeat_slot = static_cast<int>(ranks.size())});
  }
  return ranks;
}

// Returns the room for the job's table of matrix products in a rank's snapshot memory: jobs on GPUs
// alone have one, and rank 0 keeps it.
size_t ProductTableBytes(const job::v1::JobSpec& spec, int rank) {
  const bool keeps_table = spec.device() == job::v1::DEVICE_CUDA && rank == 0;
  return keeps_table ? checkpoint::kProductTableBytesMax : 0;
}

}  // namespace

int64_t NodeMemory::Rank::num_connections() const {
  int64_t count = 0;
  for (const Connections& of_group : connections) count += of_group.count;
  return count;
}

int64_t NodeMemory::sum() const {
  int64_t sum = collectives + snapshots + batch_ring + telemetry + host;
  for (const Rank& rank : ranks) {
    sum += device_is_host ? rank.memory.sum() : rank.memory.on_host();
  }
  return sum;
}

absl::StatusOr<JobMemory> JobMemory::Create(const job::v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(const plan::Mesh mesh, MeshOf(spec));
  ASSIGN_OR_RETURN(const RingSizes rings, RingSizes::Create(spec, mesh));
  JobMemory memory(spec, mesh);
  for (const plan::Channel& channel : ChannelsOf(spec, mesh)) {
    ++memory.num_rings_[channel.group][rings.Of(channel)];
  }
  return memory;
}

absl::StatusOr<RankMemory> JobMemory::OfRank(int rank) {
  const auto [of_stage, is_new] = of_stage_.try_emplace(mesh_.CoordinateOf(rank).pipeline);
  if (is_new) {
    ASSIGN_OR_RETURN(of_stage->second, MemoryOf(*spec_, rank));
  }
  return of_stage->second;
}

absl::StatusOr<int64_t> JobMemory::SnapshotBytesOf(int rank) {
  const auto [bytes, is_new] = snapshot_bytes_.try_emplace(rank);
  if (!is_new) return bytes->second;
  const plan::Coordinate at = mesh_.CoordinateOf(rank);
  const auto [layout, is_new_role] = layouts_.try_emplace({at.pipeline, at.tensor});
  if (is_new_role) {
    ASSIGN_OR_RETURN(layout->second, RankLayoutOf(*spec_, mesh_, rank));
  }
  // Replicas differ in which part of each chunk's state they hold.
  layout->second.coordinate = at;
  for (optim::OptimizerShard& shard : layout->second.shards) shard.shard_index = at.data;
  ASSIGN_OR_RETURN(const int64_t payload, SnapshotPayloadBytes(layout->second, rank));
  bytes->second =
      static_cast<int64_t>(checkpoint::SnapshotBytes(payload, ProductTableBytes(*spec_, rank)));
  return bytes->second;
}

void JobMemory::AddExchanges(NodeMemory* memory) const {
  memory->collectives = static_cast<int64_t>(comm::kRegionHeaderBytes);
  for (const auto& [kind, rings] : num_rings_) {
    std::map<int, size_t> num_local;  // by the first rank of the group
    for (const NodeMemory::Rank& rank : memory->ranks) {
      ++num_local[mesh_.RankInGroup(kind, rank.rank, 0)];
    }
    comm::GroupSizes sizes = {.num_members = static_cast<size_t>(mesh_.GroupSize(kind))};
    for (const auto& [ring_bytes, channels] : rings) {
      sizes.ring_bytes = ring_bytes;
      for (const auto& [first, local] : num_local) {
        sizes.num_local = local;
        memory->collectives += static_cast<int64_t>(channels * comm::GroupBytes(sizes));
      }
    }
    for (NodeMemory::Rank& rank : memory->ranks) {
      sizes.num_local = num_local[mesh_.RankInGroup(kind, rank.rank, 0)];
      NodeMemory::Connections here = {.group = mesh_.Name(kind),
                                      .num_members = mesh_.GroupSize(kind)};
      for (const auto& [ring_bytes, channels] : rings) {
        sizes.ring_bytes = ring_bytes;
        here.count += static_cast<int64_t>(channels * (sizes.num_members - sizes.num_local));
        here.bytes += static_cast<int64_t>(channels * comm::GroupStreamBytes(sizes));
      }
      rank.memory.communicators += here.bytes;
      if (here.count > 0) rank.connections.push_back(here);
    }
  }
}

NodeMemory JobMemory::ExchangesOfMachine(const std::vector<int>& here) const {
  NodeMemory memory;
  memory.ranks.resize(here.size());
  for (size_t i = 0; i < here.size(); ++i) memory.ranks[i].rank = here[i];
  AddExchanges(&memory);
  return memory;
}

absl::StatusOr<NodeMemory> JobMemory::OfMachine(const std::vector<int>& here) {
  std::vector<LocalRank> ranks;
  NodeMemory memory;
  memory.device_is_host = spec_->device() != job::v1::DEVICE_CUDA;
  for (const int rank : here) {
    if (!mesh_.Contains(rank)) {
      return absl::InvalidArgumentError(absl::StrCat("the job has no rank ", rank));
    }
    ranks.push_back({.rank = rank});
    ASSIGN_OR_RETURN(const RankMemory of_rank, OfRank(rank));
    memory.ranks.push_back({rank, of_rank});
    ASSIGN_OR_RETURN(const int64_t snapshots, SnapshotBytesOf(rank));
    memory.snapshots += snapshots;
  }
  AddExchanges(&memory);
  const data::BatchRingShape ring = RingOf(*spec_, mesh_, &ranks);
  if (ring.num_readers > 0) memory.batch_ring = static_cast<int64_t>(data::BatchRingBytes(ring));
  const int num_ranks = static_cast<int>(ranks.size());
  memory.telemetry =
      static_cast<int64_t>(telemetry::HeartbeatBytes(num_ranks + 1) +
                           telemetry::SpanBytes(num_ranks) + telemetry::ExchangeBytes(num_ranks));
  memory.host = kHostBytes;
  return memory;
}

absl::StatusOr<NodeMemory> MemoryOfNode(const job::v1::JobSpec& spec,
                                        const std::vector<int>& here) {
  ASSIGN_OR_RETURN(JobMemory memory, JobMemory::Create(spec));
  return memory.OfMachine(here);
}

absl::StatusOr<NodeMemory> MemoryOfJob(const job::v1::JobSpec& spec) {
  std::vector<int> all(static_cast<size_t>(job::WorldSize(spec)));
  std::iota(all.begin(), all.end(), 0);
  return MemoryOfNode(spec, all);
}

namespace {

struct Part {
  const char* name;
  int64_t bytes;
  bool is_rare = false;  // left out if there is nothing of it
};

std::vector<Part> DeviceParts(const RankMemory& memory) {
  return {{"weights", memory.weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations", memory.activations},
          {"logits", memory.logits},
          {"scratch", memory.scratch},
          {"workspaces", memory.workspaces},
          {"the driver's", memory.context, true},
          {"CUDA graphs", memory.graphs, true},
          {"NCCL", memory.device_communicators, true}};
}

// Returns "3.0 MiB (weights) + 6.0 MiB (optimizer) = 9.0 MiB".
std::string SumText(const std::vector<Part>& parts) {
  std::vector<std::string> texts;
  int64_t sum = 0;
  for (const Part& part : parts) {
    sum += part.bytes;
    if (part.is_rare && part.bytes == 0) continue;
    texts.push_back(absl::StrCat(base::FormatBytes(part.bytes), " (", part.name, ")"));
  }
  return absl::StrCat(absl::StrJoin(texts, " + "), " = ", base::FormatBytes(sum));
}

std::string LeftText(const base::MemoryLimit& limit) {
  return absl::StrCat(base::FormatBytes(limit.available_bytes), " of ",
                      base::FormatBytes(limit.limit_bytes), " are left by ", limit.source);
}

}  // namespace

absl::Status CheckMemory(const NodeMemory& needed, const std::optional<base::MemoryLimit>& limit) {
  if (!limit.has_value() || needed.sum() <= limit->available_bytes) return absl::OkStatus();
  RankMemory all;
  for (const NodeMemory::Rank& rank : needed.ranks) all += rank.memory;
  std::vector<Part> parts;
  if (needed.device_is_host) parts = DeviceParts(all);
  const int64_t shared = needed.collectives + needed.batch_ring + needed.telemetry;
  for (const Part& part :
       {Part{"communicators", all.communicators, true}, Part{"pinned", all.pinned, true},
        Part{"snapshots", needed.snapshots}, Part{"shared between ranks", shared},
        Part{"processes", all.process + needed.host}}) {
    parts.push_back(part);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("memory: the ", needed.ranks.size(), " ranks of this machine need ",
                   SumText(parts), "; ", LeftText(*limit),
                   "; make the model or train.micro_batch_size smaller, or use more machines"));
}

absl::Status CheckDescriptors(const NodeMemory& needed, int64_t limit) {
  for (const NodeMemory::Rank& rank : needed.ranks) {
    if (rank.num_descriptors() <= limit) continue;
    std::vector<std::string> parts;
    for (const NodeMemory::Connections& of_group : rank.connections) {
      parts.push_back(absl::StrCat(of_group.count, " (", of_group.group, " group of ",
                                   of_group.num_members, " ranks)"));
    }
    parts.push_back(absl::StrCat(comm::kDescriptorsBesideStreams, " (the process)"));
    return absl::FailedPreconditionError(absl::StrCat(
        "descriptors: rank ", rank.rank, " needs ", absl::StrJoin(parts, " + "), " = ",
        rank.num_descriptors(), ", for its connections to other machines; the limit is ", limit,
        "; raise the agent's limit (ulimit -Hn, or LimitNOFILE of its unit), or make the largest "
        "group smaller"));
  }
  return absl::OkStatus();
}

absl::Status CheckRings(const NodeMemory& needed, const std::optional<base::MemoryLimit>& limit) {
  if (!limit.has_value()) return absl::OkStatus();
  std::map<absl::string_view, Part> by_group;
  std::map<absl::string_view, int> num_members;
  int64_t sum = needed.collectives;
  for (const NodeMemory::Rank& rank : needed.ranks) {
    for (const NodeMemory::Connections& of_group : rank.connections) {
      by_group[of_group.group].bytes += of_group.bytes;
      num_members[of_group.group] = of_group.num_members;
      sum += of_group.bytes;
    }
  }
  if (sum <= limit->available_bytes) return absl::OkStatus();
  std::vector<std::string> texts;
  for (const auto& [group, part] : by_group) {
    texts.push_back(absl::StrCat(base::FormatBytes(part.bytes), " (", group, " groups of ",
                                 num_members[group], " ranks)"));
  }
  texts.push_back(absl::StrCat(base::FormatBytes(needed.collectives), " (within the machine)"));
  return absl::FailedPreconditionError(absl::StrCat(
      "memory: the rings of the ", needed.ranks.size(), " ranks of this machine need ",
      absl::StrJoin(texts, " + "), " = ", base::FormatBytes(sum), "; ", LeftText(*limit),
      "; make the largest group smaller, or place fewer ranks on a machine"));
}

absl::Status CheckDeviceMemory(const NodeMemory& needed, const base::MemoryLimit& device) {
  if (needed.device_is_host) return absl::OkStatus();
  for (const NodeMemory::Rank& rank : needed.ranks) {
    if (rank.memory.on_device() <= device.available_bytes) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("memory: rank ", rank.rank, " needs ", SumText(DeviceParts(rank.memory)),
                     " on its device; ", LeftText(device),
                     "; make the model or train.micro_batch_size smaller, or use more devices"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AttemptMemory> MakeAttemptMemory(const NodeRequest& request) {
  const job::v1::JobSpec& spec = *request.spec;
  ASSIGN_OR_RETURN(const plan::Mesh mesh, MeshOf(spec));
  AttemptMemory memory;
  memory.ranks = LocalRanks(request);
  const int num_ranks = static_cast<int>(memory.ranks.size());
  memory.host_heartbeat_slot = num_ranks;
  ASSIGN_OR_RETURN(
      memory.heartbeats,
      SharedMemory::Create("megascale-heartbeats", telemetry::HeartbeatBytes(num_ranks + 1)));
  telemetry::FormatHeartbeats(*memory.heartbeats);
  ASSIGN_OR_RETURN(memory.spans, SharedMemory::Create("megascale-spans",
                                                      telemetry::SpanBytes(num_ranks) +
                                                          telemetry::ExchangeBytes(num_ranks)));

  ASSIGN_OR_RETURN(const comm::RegionSpec region, RegionOf(request, mesh));
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

absl::StatusOr<std::unique_ptr<SharedMemory>> MakeSnapshotMemory(const job::v1::JobSpec& spec,
                                                                 int rank) {
  ASSIGN_OR_RETURN(const int64_t payload, SnapshotPayloadBytes(spec, rank));
  const size_t table = ProductTableBytes(spec, rank);
  ASSIGN_OR_RETURN(auto region, SharedMemory::Create(absl::StrCat("megascale-snapshots-", rank),
                                                     checkpoint::SnapshotBytes(payload, table)));
  checkpoint::FormatSnapshots(*region, rank, table);
  return region;
}

}  // namespace megascale::layout
