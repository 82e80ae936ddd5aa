#include "runtime/engine/chunk_of_rank.h"

#include "runtime/base/status.h"
#include "runtime/engine/groups.h"
#include "runtime/engine/snapshot_shard.h"
#include "runtime/job/job_spec.h"

namespace megascale::engine {

using megascale::job::v1::JobSpec;

tensor::DType ComputeType(megascale::job::v1::Precision precision) {
  switch (precision) {
    case megascale::job::v1::PRECISION_BF16:
      return tensor::DType::kBF16;
    case megascale::job::v1::PRECISION_FP64:
      return tensor::DType::kF64;
    default:
      return tensor::DType::kF32;
  }
}

model::ChunkOptions ChunkOfRank::ModelOptions(int num_slots) const {
  return {.config = config,
          .range = range,
          .micro_batch = micro_batch,
          .seq = seq,
          .num_slots = num_slots,
          .compute = compute};
}

absl::StatusOr<ChunkOfRank> ChunkOf(const JobSpec& spec, int rank) {
  ChunkOfRank mine;
  ASSIGN_OR_RETURN(mine.mesh, MeshOf(spec));
  if (!mine.mesh.Contains(rank)) {
    return absl::InvalidArgumentError("engine: the rank is not in the mesh");
  }
  mine.coordinate = mine.mesh.CoordinateOf(rank);
  ASSIGN_OR_RETURN(mine.config, model::MakeModelConfig(spec.model()));
  const int num_chunks = mine.mesh.pipeline_size();
  ASSIGN_OR_RETURN(mine.range,
                   model::MakeChunkRange(mine.config, num_chunks, mine.coordinate.pipeline));
  mine.compute = ComputeType(spec.train().precision());
  mine.micro_batch = spec.train().micro_batch_size();
  mine.seq = spec.train().seq_length();
  mine.shard = {.config = mine.config,
                .range = mine.range,
                .num_shards = mine.mesh.data_size(),
                .shard_index = mine.coordinate.data};
  mine.plan_options = {.mesh = mine.mesh, .num_microbatches = job::NumMicrobatches(spec)};
  return mine;
}

absl::StatusOr<int64_t> SnapshotPayloadBytes(const JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const ChunkOfRank mine, ChunkOf(spec, rank));
  const auto state = optim::ShardedAdamW::StateLayout(mine.shard, mine.compute);
  ASSIGN_OR_RETURN(const checkpoint::ShardLayout layout, LayoutOf(rank, state));
  return layout.size_bytes();
}

}  // namespace megascale::engine
