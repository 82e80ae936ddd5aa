// One rank's part of a job, derived from the specification alone: its place in the mesh, its
// pipeline chunks with its optimizer shards, and the options of its plan.
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
#include "runtime/plan/plan_options.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/tensor/tensor.h"

namespace megascale::layout {

// The content of a gradient buffer for one bucket. Both ranges are in the flat parameter space;
// `carried` lies within `range`.
struct BufferedBucket {
  model::FlatRange range;
  // With ZeRO stage 2: the part of `range` before the bucket's own first element. A bucket may
  // begin within a layer, but its backward piece computes the gradients of the whole layer. The
  // gradients in `carried` belong to the next bucket.
  model::FlatRange carried;
};

struct RankLayout {
  plan::Mesh mesh;
  plan::Coordinate coordinate;
  model::ModelConfig config;
  tensor::DType compute = tensor::DType::kF32;
  int64_t micro_batch = 0;
  int64_t seq = 0;
  model::Recompute recompute = model::Recompute::kNone;
  bool within_documents = false;  // see model::ChunkOptions
  model::TensorPlace tensor;
  int64_t bucket_size = 0;                    // see model::ChunkLayout::Buckets
  std::vector<optim::OptimizerShard> shards;  // one for each chunk, in the model's order
  plan::PlanOptions plan_options;             // chunk costs are left out: see ChunkCostsOf
  // With tied ends, on the first and the last stage: the elements of this rank's part of the
  // embedding matrix, which the two stages exchange. Otherwise 0.
  int64_t exchanged_embedding = 0;
  // True on the last stage of a model with tied ends, which has a copy of the embedding matrix.
  bool borrows_embedding() const { return exchanged_embedding > 0 && coordinate.pipeline > 0; }

  // This rank's optimizer shard of the chunk `range`. `range` may be a chunk of another stage.
  optim::OptimizerShard ShardOf(const model::ChunkRange& range) const;
  std::vector<model::Bucket> BucketsOf(const model::ChunkLayout& layout) const;
  // Returns the content of the gradient buffer for each bucket, in the order of the buckets.
  std::vector<BufferedBucket> InGradientBuffers(const model::ChunkLayout& layout) const;
  // Options of the chunk `range`, with activation memory for `num_slots` micro-batches in flight.
  model::ChunkOptions ModelOptions(const model::ChunkRange& range, int num_slots) const;
};

// Elements of the flat space that other tensor ranks hold, too. Their gradients are summed over
// these copies. All tensor ranks together have `num_slots` different ranges. One sum over all ranks
// adds the ranges side by side: this rank has its range in slot `slot`, and zeros in the other
// slots.
struct CopiedRange {
  model::FlatRange range;
  int64_t slot = 0;
  int64_t num_slots = 1;  // 1: every rank has a copy
  int64_t summed() const { return range.count * num_slots; }
};

// Returns the parts of `range` (flat space) that other tensor ranks hold, too. Adjacent parts that
// every rank holds are merged.
std::vector<CopiedRange> ReplicatedRanges(const model::ChunkLayout& layout,
                                          const model::FlatRange& range);
// Returns the number of elements that are summed for ReplicatedRanges.
int64_t NumReplicated(const model::ChunkLayout& layout, const model::FlatRange& range);

// Derives `rank`'s part of the job. Errors: InvalidArgument - the specification cannot be run.
absl::StatusOr<RankLayout> RankLayoutOf(const megascale::job::v1::JobSpec& spec, int rank);
// The same in a given mesh. RankLayoutOf(spec, rank) uses MeshOf(spec).
absl::StatusOr<RankLayout> RankLayoutOf(const megascale::job::v1::JobSpec& spec,
                                        const plan::Mesh& mesh, int rank);

// Sizes of a rank's gradient memory, in elements.
struct GradientSizes {
  // By gradient buffer of the plan: the size of the largest padded chunk (ZeRO stage 1) or of the
  // largest bucket (stage 2) that uses it.
  std::vector<int64_t> buffers;
  // By chunk, with ZeRO stage 2 only. `shards`: the rank's own gradient shard. `early`: gradients
  // that passes compute for a bucket before the bucket has a buffer. `shards` and `early` are empty
  // with stage 1, where buffers hold whole chunks and shards are parts of the buffers.
  std::vector<int64_t> shards;
  std::vector<int64_t> early;
  int64_t carried = 0;  // what one piece of a backward hands to the next: BufferedBucket::carried
  // the replicated gradients of a bucket, packed; 0 without tensor parallelism
  int64_t replicated = 0;
  // with tied ends: the head's gradient, which the last stage sums and the first stage receives
  int64_t head = 0;
};
GradientSizes GradientSizesOf(const RankLayout& part, const plan::RankPlan& plan);
// Returns the bytes of memory of these sizes, with all elements of type `dtype`.
int64_t GradientBytes(const GradientSizes& sizes, tensor::DType dtype);

// Returns the operations of every pass of each chunk of the model, as `part`'s rank would run them.
// The backward is also given in pieces, one for each bucket. Errors: as RankLayoutOf.
absl::StatusOr<std::vector<model::ChunkPasses>> PassesOf(const RankLayout& part);

// Returns what each chunk of the model costs one rank: FLOPs and bytes of one micro-batch, and
// bytes of its parameters padded to equal shards. Tensor ranks share all computing evenly. Errors:
// as RankLayoutOf.
absl::StatusOr<std::vector<plan::ChunkCost>> ChunkCostsOf(const megascale::job::v1::JobSpec& spec);
// The same for a caller that has already recorded the passes. Requires: `part` is rank 0's,
// `passes` is PassesOf(part).
absl::StatusOr<std::vector<plan::ChunkCost>> ChunkCostsOf(
    const megascale::job::v1::JobSpec& spec, const RankLayout& part,
    const std::vector<model::ChunkPasses>& passes);

// Requires: `spec` is resolved.
model::Recompute RecomputeOf(const megascale::job::v1::JobSpec& spec);

tensor::DType ComputeType(megascale::job::v1::Precision precision);

// Returns the slices of a rank's optimizer state, chunk after chunk. Their `data` has a type and a
// size but no address: nothing is allocated. Errors: as RankLayoutOf.
absl::StatusOr<std::vector<optim::StateSlice>> StateLayoutOf(
    const megascale::job::v1::JobSpec& spec, int rank);

// Returns the bytes of the rank's checkpoint shard, which a snapshot buffer must hold. Errors: as
// RankLayoutOf; InvalidArgument, too, if the shard would be empty.
absl::StatusOr<int64_t> SnapshotPayloadBytes(const megascale::job::v1::JobSpec& spec, int rank);
// The same for a rank whose part is known.
absl::StatusOr<int64_t> SnapshotPayloadBytes(const RankLayout& mine, int rank);

}  // namespace megascale::layout
