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

// What a gradient buffer holds for a bucket. Of the flat space; `carried` within `range`.
struct BufferedBucket {
  model::FlatRange range;
  // Where buffers are of buckets: what lies before the bucket, which begins within a layer. Its
  // piece of a pass makes that too, and it is of the next bucket.
  model::FlatRange carried;
};

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
  // By bucket.
  std::vector<BufferedBucket> InGradientBuffers(const model::ChunkLayout& layout) const;
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
  // By gradient buffer of the plan: as its largest chunk, padded, or its largest bucket.
  std::vector<int64_t> buffers;
  // By chunk: what the rank's shard has of its own, and what its passes make of a bucket that has
  // no buffer yet. Empty where buffers hold whole chunks and shards are parts of them.
  std::vector<int64_t> shards;
  std::vector<int64_t> early;
  int64_t carried = 0;     // between two pieces of a pass
  int64_t replicated = 0;  // of tensor ranks: a bucket's copies, packed
};
GradientSizes GradientSizesOf(const ChunksOfRank& part, const plan::RankPlan& plan);
// What they take, all in `dtype`.
int64_t GradientBytes(const GradientSizes& sizes, tensor::DType dtype);

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
