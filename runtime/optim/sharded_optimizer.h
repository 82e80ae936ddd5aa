// AdamW or LAMB over one data-parallel rank's shard of a chunk's flat parameter space: it has that
// shard of the master weights and of both moments, in the accumulation type F. Where models compute
// in F, the weights themselves are the master weights. A shard is a part of each of the chunk's
// buckets: what is of a shard is a vector for each bucket, [part]. Of a chunk that tensor ranks
// hold together each shards its own part; what they have copies of counts once in sums, at the
// first of them.
//
//   reduce-scatter gradients, bucket by bucket -> grad (the shard's ranges)
//   all-reduce optimizer->SumOfSquares(grad) -> sum
//   StepArgs step = {.grad = grad, .clip_factor = ClipFactor(sum, clip)};
//   if (optimizer->num_trust_sums() > 0) {  // LAMB
//     optimizer->MakeUpdate(step, mine);
//     all-gather mine over the shards, those of tensor ranks among them -> all
//     step.trust_sums = all;
//   }
//   optimizer->Step(step)
//   all-gather weights
//
// With u = m / (sqrt(v) + eps) + weight_decay * w, of bias-corrected moments, AdamW does w -= lr *
// u and LAMB, tensor by tensor, w -= lr * |w| / |u| * u. That trust ratio |w| / |u| is of the whole
// logical tensor, however it is sharded, and 1 where either norm is 0; the published scaling
// function phi is the identity.
//
// Biases and norms have no decay, and with LAMB a ratio of 1; matrices, embeddings among them, have
// both. So do BERT's LAMB of TensorFlow Addons (exclude_from_weight_decay, which its layer
// adaptation follows) and Apex's FusedLAMB (no ratio without decay).
//
// Threads: one at a time, that of `ops`. Determinism: with AdamW each element's update depends on
// that element alone, so that neither shards nor buckets change a bit of it. LAMB's norms, and the
// sum of squares by which gradients are clipped, are sums in fp64 over each shard, added in shard
// order: the same bits for the same buckets and numbers of shards and of tensor ranks, and rounded
// otherwise for others.
// Sources: Loshchilov and Hutter, 2019, algorithm 2; You et al., 2020, algorithm 2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::job::v1 {
class OptimizerSpec;
}

namespace megascale::optim {

// What to multiply gradients by so that their norm, the root of `sum_of_squares` over all
// parameters of the model, is at most `clip_grad`. 1 where it already is, or where clip_grad is 0.
double ClipFactor(double sum_of_squares, double clip_grad);

// Whether a step has an exchange of trust sums: LAMB's.
bool HasTrustRatios(const job::v1::OptimizerSpec& spec);
// Numbers that each shard of a chunk gives to that exchange; 0: there is none.
int NumTrustSums(const job::v1::OptimizerSpec& spec, const model::ChunkLayout& layout);

struct OptimizerShard {
  model::ModelConfig config;
  model::ChunkRange range;
  int num_shards = 1;  // the data-parallel size
  int shard_index = 0;
  model::TensorPlace tensor = {};
  int64_t bucket_size = 0;  // as of ChunkLayout::Buckets

  // What the tensor rank has of the chunk.
  model::ChunkLayout layout() const { return {config, range, tensor}; }
  // The shard's part of each bucket of the flat parameter space.
  std::vector<model::FlatRange> ranges() const;
  // Everything that the chunk's state is cut into, and which of it this is: tensor ranks of a shard
  // are neighbours.
  int num_parts() const { return num_shards * tensor.size; }
  int part_index() const { return shard_index * tensor.size + tensor.index; }
};

struct StepArgs {
  // By bucket: [part] F: the mean over the global batch, before clipping.
  absl::Span<const tensor::Vector> grad;
  double clip_factor = 1.0;
  double lr = 0;
  int64_t step = 1;  // from 1
  // Of MakeUpdate, of all parts one behind the other: [num_parts * num_trust_sums].
  absl::Span<const double> trust_sums = {};
};

// A part of the optimizer's state that lies in one logical tensor: a flat range of a box that this
// tensor rank has of it. Without tensor parallelism the box is all of it.
struct StateSlice {
  std::string name;            // the parameter's, "optimizer.exp_avg." or "optimizer.exp_avg_sq."
                               // before it for the moments
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<int64_t> box_offset;
  std::vector<int64_t> box_shape;
  int64_t begin = 0;  // first element, in the flattened box
  // Of a tensor that every tensor rank has all of: whose copy it is, the rank's index; else 0.
  int replica = 0;
  tensor::Vector data;  // the elements; writing here restores them
};

class ShardedOptimizer {
 public:
  // `spec` is of a resolved job. `weights`: by bucket, [part] compute: the shard of the weights,
  // which steps overwrite. What Create allocates is zero.
  // Ownership: `ops` and what `weights` name must outlive the object.
  // Errors: ResourceExhausted - no memory for StateBytes().
  static absl::StatusOr<std::unique_ptr<ShardedOptimizer>> Create(
      const job::v1::OptimizerSpec& spec, const OptimizerShard& shard,
      std::vector<tensor::Vector> weights, ops::Ops* ops);
  // Bytes of the state that Create allocates, with compute in `compute`: of either algorithm, since
  // LAMB's update takes the gradient's place.
  static int64_t StateBytes(const OptimizerShard& shard, tensor::DType compute);

  // Master weights as model::InitializeParameters makes them; moments zero. PublishWeights must
  // follow.
  void Initialize(uint64_t seed);

  const OptimizerShard& shard() const { return shard_; }
  // As shard().ranges(); the first may end in padding.
  const std::vector<model::FlatRange>& ranges() const { return ranges_; }

  // Of the shard's gradients without padding, in fp64, and without those that another tensor rank
  // counts. grad: by bucket, [part] F.
  double SumOfSquares(absl::Span<const tensor::Vector> grad);

  // See NumTrustSums.
  int num_trust_sums() const { return num_trust_sums_; }

  // LAMB's first part of a step: updates the moments and overwrites args.grad with the update u.
  // For each tensor of the chunk, in the layout's order, `sums` [num_trust_sums] receives the sum
  // of squares of its weights, then that of its update, in fp64, over the elements of this shard. 0
  // of tensors that have none here or that another tensor rank counts, and of those without trust
  // ratio.
  void MakeUpdate(const StepArgs& args, absl::Span<double> sums);

  // AdamW's step, or what is left of LAMB's: after MakeUpdate, with the same grad and step (CHECK).
  // Updates state and weights; padding of the state is left alone.
  void Step(const StepArgs& args);

  // Overwrites the weights with the master weights, rounded: after these were initialized or
  // restored.
  void PublishWeights();

  // By bucket, as Create was given them; where compute is F, they are state.
  const std::vector<tensor::Vector>& weights() const { return weights_; }

  // What State() will list, without memory behind it: for laying out checkpoints.
  static std::vector<StateSlice> StateLayout(const OptimizerShard& shard, tensor::DType compute);

  // All state, as slices of logical tensors without padding: master weights, then first, then
  // second moments. The memory is this object's, or the weights'.
  std::vector<StateSlice> State() const;

 private:
  ShardedOptimizer(const OptimizerShard& shard, std::vector<tensor::Vector> weights, ops::Ops* ops);

  // What lies in the shard's part of one bucket of one box of a parameter.
  struct Slice : model::ParameterSlice {
    size_t bucket = 0;
  };
  static std::vector<Slice> SlicesOf(const model::ChunkLayout& layout,
                                     const std::vector<model::FlatRange>& ranges);
  static std::vector<StateSlice> Describe(const model::ChunkLayout& layout,
                                          const std::vector<Slice>& slices, tensor::DType dtype);

  // The elements of `slice` in what is of a shard.
  tensor::Vector Part(absl::Span<const tensor::Vector> shard, const Slice& slice) const;
  const model::Parameter& ParameterOf(const model::ParameterSlice& slice) const;
  // What AdamW and MakeUpdate have in common.
  ops::AdamWArgs ArgsOf(const StepArgs& args, const Slice& slice) const;
  bool IsOfShard(absl::Span<const tensor::Vector> vectors, tensor::DType dtype) const;
  void CheckArgs(const StepArgs& args) const;
  // Whether another tensor rank counts this tensor in sums.
  bool CountsElsewhere(const model::Parameter& parameter) const {
    return parameter.replicated && shard_.tensor.index > 0;
  }
  double TrustRatio(absl::Span<const double> trust_sums, int parameter_index) const;

  const OptimizerShard shard_;
  const model::ChunkLayout layout_;
  const std::vector<model::FlatRange> ranges_;
  const std::vector<Slice> slices_;
  ops::Ops& ops_;
  double beta1_ = 0, beta2_ = 0, eps_ = 0, weight_decay_ = 0;
  int num_trust_sums_ = 0;
  int64_t updated_step_ = 0;  // whose update MakeUpdate left in the gradient; 0: none
  const std::vector<tensor::Vector> weights_;  // by bucket: [part] compute; not owned
  tensor::Arena arena_;
  std::vector<tensor::Vector> master_, exp_avg_, exp_avg_sq_;  // by bucket: [part] F
};

}  // namespace megascale::optim
