// Which part of a job a rank does, derived from the specification alone: its place in the mesh, its
// pipeline chunks with its shards of the optimizer, and the options of its plan.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/model/activation_memory.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/model/pass_operations.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/step_plan.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct ChunksOfRank {
  plan::Mesh mesh;
  plan::Coordinate coordinate;
  model::ModelConfig config;
  tensor::DType compute = tensor::DType::kF32;
  int64_t micro_batch = 0;
  int64_t seq = 0;
  model::Recompute recompute = model::Recompute::kNone;
  model::TensorPlace tensor;
  int64_t bucket_size = 0;                    // as of model::ChunkLayout::Buckets
  std::vector<optim::OptimizerShard> shards;  // of each chunk, in the model's order
  plan::PlanOptions plan_options;             // without the chunks' costs: ChunkCostsOf

  // Of the chunk with this range, wherever it is.
  optim::OptimizerShard ShardOf(const model::ChunkRange& range) const;
  std::vector<model::Bucket> BucketsOf(const model::ChunkLayout& layout) const;
  // Elements that tensor ranks have copies of, of the bucket with most of them; 0 where there is
  // one tensor rank.
  int64_t most_replicated() const;
  // Of the chunk with this range, with room for `num_slots` micro-batches in flight.
  model::ChunkOptions ModelOptions(const model::ChunkRange& range, int num_slots) const;
};

// Where in the flat space, within `range`, the parameters lie that tensor ranks have copies of;
// adjacent ones as one.
std::vector<model::FlatRange> ReplicatedRanges(const model::ChunkLayout& layout,
                                               const model::FlatRange& range);
// Their elements.
int64_t NumReplicated(const model::ChunkLayout& layout, const model::FlatRange& range);

// Errors: InvalidArgument - the specification cannot be run.
absl::StatusOr<ChunksOfRank> ChunksOf(const megascale::job::v1::JobSpec& spec, int rank);

// Elements of a rank's memory for gradients.
struct GradientSizes {
  std::vector<int64_t> buffers;  // by gradient buffer of the plan: as its largest chunk, padded
  // By chunk: what each rank's shard has of its own; empty where shards are parts of the buffers.
  std::vector<int64_t> shards;
};
GradientSizes GradientSizesOf(const ChunksOfRank& part, const plan::RankPlan& plan);

// What each chunk of the model costs one rank: of one micro-batch, or of parameters padded to equal
// shards. Tensor ranks share all computing evenly. Errors: as ChunksOf.
absl::StatusOr<std::vector<plan::ChunkCost>> ChunkCostsOf(const megascale::job::v1::JobSpec& spec);

// By bucket of a chunk: its piece of a pass that makes gradients whole.
std::vector<model::PassOperations> OperationsOfPieces(const model::ChunkOptions& options,
                                                      const std::vector<model::Bucket>& buckets);

// Of a resolved specification.
model::Recompute RecomputeOf(const megascale::job::v1::JobSpec& spec);

tensor::DType ComputeType(megascale::job::v1::Precision precision);

// Bytes of the rank's shard of a checkpoint: what a snapshot buffer must hold.
absl::StatusOr<int64_t> SnapshotPayloadBytes(const megascale::job::v1::JobSpec& spec, int rank);

}  // namespace megascale::engine
