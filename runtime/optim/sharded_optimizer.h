// AdamW or LAMB over one data-parallel rank's shard of a chunk's flat parameter space. It holds
// that shard of the master weights and of both moments, in the accumulation type F. If the model
// computes in F, the weights themselves are the master weights. A shard has a part of each bucket
// of the chunk, so the data of a shard is one vector [part] for each bucket. If tensor ranks hold a
// chunk together, each tensor rank's part of the chunk is sharded separately. Parameters that
// several tensor ranks hold count once in sums, on the first of these ranks.
//
//   reduce-scatter gradients, bucket by bucket -> grad (the shard's ranges)
//   optimizer->AddSumOfSquares(grad, sum), over all ranks -> step_numbers (ops::CombineNorms)
//   StepArgs step = {.grad = grad, .step_numbers = step_numbers, .trust_sums = all};
//   if (optimizer->num_trust_sums() > 0) {  // LAMB; `mine` is this shard's part of `all`
//     optimizer->MakeUpdate(step, mine);
//     all-gather mine over all parts, the shards of every tensor rank -> all
//   }
//   optimizer->Step(step)
//   all-gather weights
//
// With u = m / (sqrt(v) + eps) + weight_decay * w, of bias-corrected moments, AdamW does w -= lr *
// u. LAMB does, tensor by tensor, w -= lr * |w| / |u| * u. The trust ratio |w| / |u| is computed
// over the whole logical tensor, however it is sharded, and is 1 if either norm is 0. The scaling
// function phi of the paper is the identity.
//
// Matrices and embeddings have weight decay and, with LAMB, a trust ratio. Biases and norms have no
// weight decay, and their ratio is 1. This agrees with BERT's LAMB of TensorFlow Addons
// (exclude_from_weight_decay also excludes from layer adaptation) and with Apex's FusedLAMB (no
// ratio without decay).
//
// Threads: one at a time, the thread of `ops`. Determinism: while no gradient is clipped, AdamW's
// update of an element depends on that element alone, so neither shards nor buckets change its
// bits. The sum of squares by which gradients are clipped, and LAMB's norms, are sums in fp64 over
// each shard, added in shard order. The bits of these sums depend on the buckets and on the numbers
// of shards and tensor ranks. Sources: Loshchilov and Hutter, 2019, algorithm 2; You et al., 2020,
// algorithm 2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/device/host_window.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/model/initialize.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::job::v1 {
class OptimizerSpec;
}

namespace megascale::optim {

// Whether a step exchanges trust sums, the sums of squares behind the trust ratios, as a step of
// LAMB does.
bool HasTrustRatios(const job::v1::OptimizerSpec& spec);
// Returns how many numbers each shard of a chunk contributes to that exchange; 0: no exchange.
int NumTrustSums(const job::v1::OptimizerSpec& spec, const model::ChunkLayout& layout);

struct OptimizerShard {
  model::ModelConfig config;
  model::ChunkRange range;
  int num_shards = 1;  // the data-parallel size
  int shard_index = 0;
  model::TensorPlace tensor = {};
  int64_t bucket_size = 0;  // see ChunkLayout::Buckets

  // Returns the layout of the tensor rank's part of the chunk.
  model::ChunkLayout layout() const { return {config, range, tensor}; }
  // Returns the shard's part of each bucket of the flat parameter space.
  std::vector<model::FlatRange> ranges() const;
  // The number of parts into which the chunk's state is cut over data and tensor ranks, and the
  // index of this part. Tensor ranks of the same shard are neighbours.
  int num_parts() const { return num_shards * tensor.size; }
  int part_index() const { return shard_index * tensor.size + tensor.index; }
};

struct StepArgs {
  // By bucket, [part] F: the mean gradient over the global batch, before clipping.
  absl::Span<const tensor::Vector> grad;
  tensor::Vector step_numbers;  // [ops::kNumStepNumbers] F64
  // Memory for the sums from MakeUpdate of all parts, in part order: [num_parts * num_trust_sums]
  // F64. Filled before Step.
  tensor::Vector trust_sums = {};
};

// A part of the optimizer's state that lies in one logical tensor: a flat range of one box
// (model::ParameterBox) of the tensor. Without tensor parallelism the box is the whole tensor.
struct StateSlice {
  // The parameter's name; moments have "optimizer.exp_avg." or "optimizer.exp_avg_sq." before the
  // name.
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<int64_t> box_offset;
  std::vector<int64_t> box_shape;
  int64_t begin = 0;  // first element, within the flattened box
  // The index of this copy if several tensor ranks have copies; otherwise 0.
  int replica = 0;
  tensor::Vector data;  // the elements; writing to them restores the state
};

// The names of both moments begin with this, and no other names do.
inline constexpr char kMomentPrefix[] = "optimizer.";

class ShardedOptimizer {
 public:
  // `spec` belongs to a resolved job. `weights`: the shard of the weights, by bucket, [part]
  // compute; steps overwrite it. The state that Create allocates is zero. Ownership: `ops` and the
  // memory of `weights` must outlive the object. Errors: ResourceExhausted - no memory for
  // StateBytes().
  static absl::StatusOr<std::unique_ptr<ShardedOptimizer>> Create(
      const job::v1::OptimizerSpec& spec, const OptimizerShard& shard,
      std::vector<tensor::Vector> weights, ops::Ops* ops,
      tensor::AllocateArena allocate = tensor::Arena::Create);
  // Returns the bytes of the state that Create allocates, with the compute type `compute`. AdamW
  // and LAMB need the same, because LAMB's update overwrites the gradient.
  static int64_t StateBytes(const OptimizerShard& shard, tensor::DType compute);

  // Sets the master weights to the values of model::InitializeParameters. `window` copies them into
  // this object's memory. The moments stay zero, as Create left them. Blocking. Requires:
  // PublishWeights is called next. Errors: as HostWindow::Write.
  absl::Status Initialize(const model::InitializeOptions& options, device::HostWindow* window);

  const OptimizerShard& shard() const { return shard_; }
  // Returns shard().ranges(). Buckets begin with the last layers, so the first range may end in
  // padding.
  const std::vector<model::FlatRange>& ranges() const { return ranges_; }

  // Adds the sum of squares of the shard's gradients to `sum` [1] F64. Leaves out padding, and
  // gradients that another tensor rank counts. grad: by bucket, [part] F.
  void AddSumOfSquares(absl::Span<const tensor::Vector> grad, const tensor::Vector& sum);

  // See NumTrustSums.
  int num_trust_sums() const { return num_trust_sums_; }

  // Runs the first part of LAMB's step: updates the moments and overwrites args.grad with the
  // update u. For each tensor of the chunk, in the layout's order, `sums` [num_trust_sums] F64
  // receives the sum of squares of the tensor's weights, then that of its update, over the elements
  // of this shard. The two sums are 0 for tensors without elements in this shard, for tensors that
  // another tensor rank counts, and for tensors without a trust ratio.
  void MakeUpdate(const StepArgs& args, const tensor::Vector& sums);

  // Runs AdamW's step, or the second part of LAMB's step. With LAMB it requires that MakeUpdate
  // came before (CHECK), with the same grad and step_numbers (not checked). Updates state and
  // weights, but not the padding of the state. Allocates nothing if the arguments have the same
  // addresses as in the call before.
  void Step(const StepArgs& args);

  // Overwrites the weights with the rounded master weights, after Initialize or a restore.
  void PublishWeights();

  // Returns the weights by bucket, as given to Create. If the compute type is F, they are a part of
  // the state.
  const std::vector<tensor::Vector>& weights() const { return weights_; }

  // Returns the slices that State() would return, but without memory, to lay out checkpoints.
  static std::vector<StateSlice> StateLayout(const OptimizerShard& shard, tensor::DType compute);

  // Returns all state as slices of logical tensors without padding: master weights, then first
  // moments, then second moments. The memory belongs to this object or to the weights.
  std::vector<StateSlice> State() const;

 private:
  ShardedOptimizer(const OptimizerShard& shard, std::vector<tensor::Vector> weights, ops::Ops* ops);

  // The elements of one box of a parameter that lie in the shard's part of one bucket.
  struct Slice : model::ParameterSlice {
    size_t bucket = 0;
  };
  static std::vector<Slice> SlicesOf(const model::ChunkLayout& layout,
                                     const std::vector<model::FlatRange>& ranges);
  static std::vector<StateSlice> Describe(const model::ChunkLayout& layout,
                                          const std::vector<Slice>& slices, tensor::DType dtype);

  // Returns the elements of `slice` in `shard`, which is a shard's data by bucket.
  tensor::Vector Part(absl::Span<const tensor::Vector> shard, const Slice& slice) const;
  const model::Parameter& ParameterOf(const model::ParameterSlice& slice) const;
  // Makes the lists of arguments for the step's operators, unless the lists of the call before are
  // still right.
  void MakeLists(const StepArgs& args);
  bool IsOfShard(absl::Span<const tensor::Vector> vectors, tensor::DType dtype) const;
  // Whether another tensor rank counts these elements in sums.
  bool CountsElsewhere(const model::ParameterSlice& slice) const {
    return ParameterOf(slice).boxes[slice.box_index].copy > 0;
  }

  const OptimizerShard shard_;
  const model::ChunkLayout layout_;
  const std::vector<model::FlatRange> ranges_;
  const std::vector<Slice> slices_;
  ops::Ops& ops_;
  double beta1_ = 0, beta2_ = 0, eps_ = 0, weight_decay_ = 0;
  int num_trust_sums_ = 0;
  bool has_update_ = false;                     // the gradient holds an update (MakeUpdate)
  std::vector<ops::AdamWArgs> adam_list_;       // by slice
  std::vector<ops::TrustStepArgs> trust_list_;  // by slice, with trust ratios
  const std::vector<tensor::Vector> weights_;   // by bucket: [part] compute; borrowed
  tensor::Arena arena_;
  std::vector<tensor::Vector> master_, exp_avg_, exp_avg_sq_;  // by bucket: [part] F
};

}  // namespace megascale::optim
