#include "runtime/optim/sharded_adamw.h"

#include <algorithm>
#include <cmath>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/model/initialize.h"

namespace megascale::optim {
namespace {

using model::ChunkLayout;
using model::FlatRange;
using model::Parameter;
using model::ParameterSlice;
using tensor::Arena;
using tensor::DType;
using tensor::Vector;

double OrDefault(double value, double fallback) { return value == 0 ? fallback : value; }

// Elements [begin, begin + count); none of none.
Vector Part(const Vector& vector, int64_t begin, int64_t count) {
  if (!vector) return vector;
  MEGASCALE_CHECK(begin >= 0 && begin + count <= vector.size);
  return {static_cast<char*>(vector.data) + begin * static_cast<int64_t>(SizeOf(vector.dtype)),
          vector.dtype, count};
}

// The state of a shard without its memory: master weights, then first, then second moments.
std::vector<StateSlice> Describe(const ChunkLayout& layout,
                                 const std::vector<ParameterSlice>& slices, DType dtype) {
  std::vector<StateSlice> state;
  for (const char* prefix : {"", "optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
    for (const ParameterSlice& slice : slices) {
      const Parameter& parameter = layout.parameters()[slice.parameter_index];
      state.push_back({.name = absl::StrCat(prefix, parameter.name),
                       .shape = parameter.shape,
                       .begin = slice.begin,
                       .data = {.data = nullptr, .dtype = dtype, .size = slice.count}});
    }
  }
  return state;
}

}  // namespace

double ClipFactor(double sum_of_squares, double clip_grad) {
  const double norm = std::sqrt(sum_of_squares);
  return clip_grad > 0 && norm > clip_grad ? clip_grad / norm : 1.0;
}

absl::StatusOr<std::unique_ptr<ShardedAdamW>> ShardedAdamW::Create(
    const job::v1::OptimizerSpec& spec, const ShardedAdamWOptions& options, ops::Ops* ops) {
  auto adamw = absl::WrapUnique(new ShardedAdamW(options, ops));
  adamw->beta1_ = OrDefault(spec.beta1(), 0.9);
  adamw->beta2_ = OrDefault(spec.beta2(), 0.95);
  adamw->eps_ = OrDefault(spec.eps(), 1e-8);
  adamw->weight_decay_ = spec.weight_decay();
  ASSIGN_OR_RETURN(adamw->arena_, Arena::Create(StateBytes(options, ops->compute())));
  const DType accumulation = AccumulationType(ops->compute());
  for (Vector* state : {&adamw->master_, &adamw->exp_avg_, &adamw->exp_avg_sq_}) {
    *state = adamw->arena_.Allocate(accumulation, adamw->range_.count);
  }
  return adamw;
}

ShardedAdamW::ShardedAdamW(const ShardedAdamWOptions& options, ops::Ops* ops)
    : config_(options.config),
      layout_(options.config, options.range),
      range_(layout_.ShardRange(options.num_shards, options.shard_index)),
      slices_(layout_.SlicesOf(range_)),
      ops_(*ops) {}

int64_t ShardedAdamW::StateBytes(const ShardedAdamWOptions& options, DType compute) {
  const ChunkLayout layout(options.config, options.range);
  const int64_t count = layout.ShardRange(options.num_shards, options.shard_index).count;
  return 3 * static_cast<int64_t>(Arena::BytesFor(AccumulationType(compute), count));
}

void ShardedAdamW::Initialize(uint64_t seed) {
  model::InitializeParameters(config_, layout_, seed, range_.begin, master_);
  ops_.FillZero(exp_avg_);
  ops_.FillZero(exp_avg_sq_);
}

double ShardedAdamW::SumOfSquares(const Vector& grad) {
  MEGASCALE_CHECK(grad.size == range_.count);
  const int64_t valid = std::clamp<int64_t>(layout_.num_elements() - range_.begin, 0, range_.count);
  return valid == 0 ? 0 : ops_.SumOfSquares(Part(grad, 0, valid));
}

void ShardedAdamW::Step(const StepArgs& args) {
  MEGASCALE_CHECK(args.grad.size == range_.count);
  MEGASCALE_CHECK(!args.compute_copy || args.compute_copy.size == range_.count);
  MEGASCALE_CHECK(args.step >= 1);
  for (const ParameterSlice& slice : slices_) {
    const Parameter& parameter = layout_.parameters()[slice.parameter_index];
    const int64_t begin = parameter.offset + slice.begin - range_.begin;
    ops_.AdamW({.master = Part(master_, begin, slice.count),
                .exp_avg = Part(exp_avg_, begin, slice.count),
                .exp_avg_sq = Part(exp_avg_sq_, begin, slice.count),
                .grad = Part(args.grad, begin, slice.count),
                .compute_copy = Part(args.compute_copy, begin, slice.count),
                .grad_scale = args.clip_factor,
                .lr = args.lr,
                .beta1 = beta1_,
                .beta2 = beta2_,
                .eps = eps_,
                .weight_decay = parameter.weight_decay ? weight_decay_ : 0.0,
                .step = args.step});
  }
}

void ShardedAdamW::CopyParametersOut(const Vector& compute_copy) {
  MEGASCALE_CHECK(compute_copy.size == range_.count);
  ops_.Cast(master_, compute_copy);
}

std::vector<StateSlice> ShardedAdamW::StateLayout(const ShardedAdamWOptions& options,
                                                  DType compute) {
  const ChunkLayout layout(options.config, options.range);
  const FlatRange range = layout.ShardRange(options.num_shards, options.shard_index);
  return Describe(layout, layout.SlicesOf(range), tensor::AccumulationType(compute));
}

std::vector<StateSlice> ShardedAdamW::State() const {
  std::vector<StateSlice> state =
      Describe(layout_, slices_, tensor::AccumulationType(ops_.compute()));
  const Vector* kinds[] = {&master_, &exp_avg_, &exp_avg_sq_};
  size_t next = 0;
  for (const Vector* kind : kinds) {
    for (const ParameterSlice& slice : slices_) {
      const Parameter& parameter = layout_.parameters()[slice.parameter_index];
      const int64_t begin = parameter.offset + slice.begin - range_.begin;
      state[next++].data = Part(*kind, begin, slice.count);
    }
  }
  return state;
}

}  // namespace megascale::optim
