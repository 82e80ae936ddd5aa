// AdamW over one data-parallel rank's shard of a chunk's flat parameter space: it owns that shard
// of the master weights and of both moments, in the accumulation type F.
//
//   reduce-scatter gradients -> grad (the shard's range)
//   all-reduce adamw->SumOfSquares(grad) -> sum
//   adamw->Step({.grad = grad, .compute_copy = weights, .clip_factor = ClipFactor(sum, clip), ...})
//   all-gather weights
//
// Threads: one at a time, that of `ops`. Determinism: each element's update depends on that element
// alone, so that the number of shards does not change a bit of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

struct ShardedAdamWOptions {
  model::ModelConfig config;
  model::ChunkRange range;
  int num_shards = 1;  // the data-parallel size
  int shard_index = 0;
};

struct StepArgs {
  tensor::Vector grad;          // [shard] F: the mean over the global batch, before clipping
  tensor::Vector compute_copy;  // [shard] compute: receives the new weights, rounded
  double clip_factor = 1.0;
  double lr = 0;
  int64_t step = 1;  // from 1
};

// A part of the optimizer's state that lies in one logical tensor.
struct StateSlice {
  std::string name;            // the parameter's, "optimizer.exp_avg." or "optimizer.exp_avg_sq."
                               // before it for the moments
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0;           // first element, in the flattened tensor
  tensor::Vector data;         // the elements; writing here restores them
};

class ShardedAdamW {
 public:
  // Betas, eps and weight decay come from `spec`, zeros as proto/job.proto says. State is zero.
  // Errors: ResourceExhausted - no memory for StateBytes(). `ops` must outlive the object.
  static absl::StatusOr<std::unique_ptr<ShardedAdamW>> Create(const job::v1::OptimizerSpec& spec,
                                                              const ShardedAdamWOptions& options,
                                                              ops::Ops* ops);
  // Bytes of the state that Create allocates, with compute in `compute`.
  static int64_t StateBytes(const ShardedAdamWOptions& options, tensor::DType compute);

  // Master weights as model::InitializeParameters makes them; moments zero.
  void Initialize(uint64_t seed);

  // The shard's range of the flat parameter space; it may end in padding.
  const model::FlatRange& range() const { return range_; }

  // Of the shard's gradients without padding, in fp64. grad: [shard] F.
  double SumOfSquares(const tensor::Vector& grad);

  // Updates state and compute_copy. Decay is for matrices only; padding is left alone.
  void Step(const StepArgs& args);

  // Overwrites `compute_copy` [shard] with the master weights, rounded: after a restore.
  void CopyParametersOut(const tensor::Vector& compute_copy);

  // What State() will list, without memory behind it: for laying out checkpoints.
  static std::vector<StateSlice> StateLayout(const ShardedAdamWOptions& options,
                                             tensor::DType compute);

  // All state, as slices of logical tensors without padding: master weights, then first, then
  // second moments. The memory is this object's.
  std::vector<StateSlice> State() const;

 private:
  ShardedAdamW(const ShardedAdamWOptions& options, ops::Ops* ops);

  const model::ModelConfig config_;
  const model::ChunkLayout layout_;
  const model::FlatRange range_;
  const std::vector<model::ParameterSlice> slices_;
  ops::Ops& ops_;
  double beta1_ = 0, beta2_ = 0, eps_ = 0, weight_decay_ = 0;
  tensor::Arena arena_;
  tensor::Vector master_, exp_avg_, exp_avg_sq_;  // [shard] F
};

}  // namespace megascale::optim
