// Which part of a job a rank does, derived from the specification alone: its place in the mesh, its
// pipeline chunk, its shard of the optimizer, and the options of its plan.
#pragma once

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/model/activation_memory.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/optim/sharded_adamw.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/step_plan.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct ChunkOfRank {
  plan::Mesh mesh;
  plan::Coordinate coordinate;
  model::ModelConfig config;
  model::ChunkRange range;
  tensor::DType compute = tensor::DType::kF32;
  int64_t micro_batch = 0;
  int64_t seq = 0;
  optim::ShardedAdamWOptions shard;
  plan::PlanOptions plan_options;

  // Of the chunk, with room for `num_slots` micro-batches in flight.
  model::ChunkOptions ModelOptions(int num_slots) const;
};

// Errors: InvalidArgument - the specification cannot be run.
absl::StatusOr<ChunkOfRank> ChunkOf(const megascale::job::v1::JobSpec& spec, int rank);

tensor::DType ComputeType(megascale::job::v1::Precision precision);

// Bytes of the rank's shard of a checkpoint: what a snapshot buffer must hold.
absl::StatusOr<int64_t> SnapshotPayloadBytes(const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::engine
