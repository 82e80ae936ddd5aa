#include "runtime/optim/sharded_optimizer.h"

#include <algorithm>
#include <utility>

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

// For each tensor: the sum of squares of its weights, and of its update.
constexpr int kSumsPerTensor = 2;

bool WeightsAreMaster(DType compute) { return AccumulationType(compute) == compute; }

std::vector<FlatRange> RangesOf(const OptimizerShard& shard, const ChunkLayout& layout) {
  std::vector<FlatRange> ranges;
  for (const model::Bucket& bucket : layout.Buckets(shard.num_shards, shard.bucket_size)) {
    ranges.push_back(model::SplitEvenly(bucket.range, shard.num_shards, shard.shard_index));
  }
  return ranges;
}

}  // namespace

std::vector<FlatRange> OptimizerShard::ranges() const { return RangesOf(*this, layout()); }

bool HasTrustRatios(const job::v1::OptimizerSpec& spec) {
  return spec.type() == job::v1::OPTIMIZER_TYPE_LAMB;
}

int NumTrustSums(const job::v1::OptimizerSpec& spec, const ChunkLayout& layout) {
  if (!HasTrustRatios(spec)) return 0;
  return kSumsPerTensor * static_cast<int>(layout.parameters().size());
}

absl::StatusOr<std::unique_ptr<ShardedOptimizer>> ShardedOptimizer::Create(
    const job::v1::OptimizerSpec& spec, const OptimizerShard& shard, std::vector<Vector> weights,
    ops::Ops* ops, tensor::AllocateArena allocate_arena) {
  MEGASCALE_CHECK(spec.type() != job::v1::OPTIMIZER_TYPE_UNSPECIFIED);
  MEGASCALE_CHECK(spec.beta1() > 0 && spec.beta2() > 0 && spec.eps() > 0);
  auto optimizer = absl::WrapUnique(new ShardedOptimizer(shard, std::move(weights), ops));
  optimizer->beta1_ = spec.beta1();
  optimizer->beta2_ = spec.beta2();
  optimizer->eps_ = spec.eps();
  optimizer->weight_decay_ = spec.weight_decay();
  optimizer->num_trust_sums_ = NumTrustSums(spec, optimizer->layout_);
  ASSIGN_OR_RETURN(optimizer->arena_,
                   allocate_arena(static_cast<size_t>(StateBytes(shard, ops->compute()))));
  const auto allocate = [&](std::vector<Vector>& state) {
    for (const FlatRange& range : optimizer->ranges_) {
      state.push_back(optimizer->arena_.Allocate(AccumulationType(ops->compute()), range.count));
    }
  };
  if (WeightsAreMaster(ops->compute())) {
    optimizer->master_ = optimizer->weights_;
  } else {
    allocate(optimizer->master_);
  }
  allocate(optimizer->exp_avg_);
  allocate(optimizer->exp_avg_sq_);
  return optimizer;
}

ShardedOptimizer::ShardedOptimizer(const OptimizerShard& shard, std::vector<Vector> weights,
                                   ops::Ops* ops)
    : shard_(shard),
      layout_(shard.layout()),
      ranges_(shard.ranges()),
      slices_(SlicesOf(layout_, ranges_)),
      ops_(*ops),
      weights_(std::move(weights)) {
  MEGASCALE_CHECK(IsOfShard(weights_, ops_.compute()));
}

int64_t ShardedOptimizer::StateBytes(const OptimizerShard& shard, DType compute) {
  int64_t bytes = 0;
  for (const FlatRange& range : shard.ranges()) {
    bytes += static_cast<int64_t>(Arena::BytesFor(AccumulationType(compute), range.count));
  }
  return (WeightsAreMaster(compute) ? 2 : 3) * bytes;
}

absl::Status ShardedOptimizer::Initialize(const model::InitializeOptions& options,
                                          device::HostWindow* window) {
  for (size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
    RETURN_IF_ERROR(window->Write(master_[bucket], [&](int64_t first, const auto& piece) {
      model::InitializeParameters(shard_.config, layout_, options, ranges_[bucket].begin + first,
                                  piece);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

void ShardedOptimizer::AddSumOfSquares(absl::Span<const Vector> grad, const Vector& sum) {
  MEGASCALE_CHECK(IsOfShard(grad, AccumulationType(ops_.compute())));
  if (shard_.tensor.size == 1) {
    const FlatRange all = {0, layout_.num_elements()};
    for (size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
      const int64_t valid = model::Overlap(ranges_[bucket], all).count;
      if (valid > 0) ops_.AddSumOfSquares({grad[bucket].data, grad[bucket].dtype, valid}, sum);
    }
    return;
  }
  for (const Slice& slice : slices_) {
    if (CountsElsewhere(slice)) continue;
    ops_.AddSumOfSquares(Part(grad, slice), sum);
  }
}

const Parameter& ShardedOptimizer::ParameterOf(const ParameterSlice& slice) const {
  return layout_.parameters()[slice.parameter_index];
}

std::vector<ShardedOptimizer::Slice> ShardedOptimizer::SlicesOf(
    const ChunkLayout& layout, const std::vector<FlatRange>& ranges) {
  std::vector<Slice> slices;
  for (size_t bucket = 0; bucket < ranges.size(); ++bucket) {
    for (const ParameterSlice& slice : layout.SlicesOf(ranges[bucket])) {
      slices.push_back({slice, bucket});
    }
  }
  return slices;
}

// Returns the state of a shard without memory: master weights, then first, then second moments.
std::vector<StateSlice> ShardedOptimizer::Describe(const ChunkLayout& layout,
                                                   const std::vector<Slice>& slices, DType dtype) {
  std::vector<StateSlice> state;
  for (const char* prefix : {"", "optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
    for (const Slice& slice : slices) {
      const Parameter& parameter = layout.parameters()[slice.parameter_index];
      const model::ParameterBox& box = parameter.boxes[slice.box_index];
      state.push_back({.name = absl::StrCat(prefix, parameter.name),
                       .shape = parameter.global_shape,
                       .box_offset = box.offset,
                       .box_shape = box.shape,
                       .begin = slice.begin_in_box,
                       .replica = box.copy,
                       .data = {.data = nullptr, .dtype = dtype, .size = slice.count}});
    }
  }
  return state;
}

bool ShardedOptimizer::IsOfShard(absl::Span<const Vector> vectors, DType dtype) const {
  return std::equal(vectors.begin(), vectors.end(), ranges_.begin(), ranges_.end(),
                    [dtype](const Vector& vector, const FlatRange& range) {
                      return vector.size == range.count && vector.dtype == dtype;
                    });
}

Vector ShardedOptimizer::Part(absl::Span<const Vector> shard, const Slice& slice) const {
  const Vector& part = shard[slice.bucket];
  const int64_t begin = ParameterOf(slice).offset + slice.begin - ranges_[slice.bucket].begin;
  MEGASCALE_CHECK(begin >= 0 && begin + slice.count <= part.size);
  return {part.as<char>() + begin * static_cast<int64_t>(SizeOf(part.dtype)), part.dtype,
          slice.count};
}

void ShardedOptimizer::MakeLists(const StepArgs& args) {
  MEGASCALE_CHECK(IsOfShard(args.grad, AccumulationType(ops_.compute())));
  const bool has_trust_ratios = num_trust_sums_ > 0;
  const bool is_same =
      !adam_list_.empty() && adam_list_.front().step_numbers.data == args.step_numbers.data &&
      adam_list_.front().grad.data == Part(args.grad, slices_.front()).data &&
      (!has_trust_ratios || trust_list_.front().trust_sums.data == args.trust_sums.data);
  if (is_same) return;
  adam_list_.clear();
  trust_list_.clear();
  for (const Slice& slice : slices_) {
    const Vector grad = Part(args.grad, slice);
    const bool has_copy = !has_trust_ratios && !WeightsAreMaster(ops_.compute());
    adam_list_.push_back({.master = Part(master_, slice),
                          .exp_avg = Part(exp_avg_, slice),
                          .exp_avg_sq = Part(exp_avg_sq_, slice),
                          .grad = grad,
                          .compute_copy = has_copy ? Part(weights_, slice) : Vector(),
                          .update = has_trust_ratios ? grad : Vector(),
                          .step_numbers = args.step_numbers,
                          .beta1 = beta1_,
                          .beta2 = beta2_,
                          .eps = eps_,
                          .weight_decay = ParameterOf(slice).weight_decay ? weight_decay_ : 0.0});
    if (!has_trust_ratios) continue;
    trust_list_.push_back({.master = Part(master_, slice),
                           .update = grad,
                           .trust_sums = args.trust_sums,
                           .num_parts = shard_.num_parts(),
                           .first_sum = kSumsPerTensor * slice.parameter_index,
                           .step_numbers = args.step_numbers});
  }
}

void ShardedOptimizer::MakeUpdate(const StepArgs& args, const Vector& sums) {
  MEGASCALE_CHECK(num_trust_sums_ > 0);
  MEGASCALE_CHECK(sums.size == num_trust_sums_ && sums.dtype == DType::kF64);
  MEGASCALE_CHECK(args.trust_sums.size == int64_t{shard_.num_parts()} * num_trust_sums_);
  MakeLists(args);
  ops_.FillZero(sums);
  ops_.AdamW(adam_list_);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    // Parameters without weight decay have no trust ratio either.
    if (!ParameterOf(slice).weight_decay || CountsElsewhere(slice)) continue;
    double* const squares = sums.as<double>() + kSumsPerTensor * slice.parameter_index;
    ops_.AddSumOfSquares(adam_list_[i].master, {squares, DType::kF64, 1});
    ops_.AddSumOfSquares(adam_list_[i].update, {squares + 1, DType::kF64, 1});
  }
  has_update_ = true;
}

void ShardedOptimizer::Step(const StepArgs& args) {
  MakeLists(args);
  if (num_trust_sums_ == 0) return ops_.AdamW(adam_list_);
  MEGASCALE_CHECK(std::exchange(has_update_, false));
  ops_.TrustStep(trust_list_);
  PublishWeights();
}

void ShardedOptimizer::PublishWeights() {
  if (WeightsAreMaster(ops_.compute())) return;
  for (size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
    ops_.Cast(master_[bucket], weights_[bucket]);
  }
}

std::vector<StateSlice> ShardedOptimizer::StateLayout(const OptimizerShard& shard, DType compute) {
  const ChunkLayout layout = shard.layout();
  return Describe(layout, SlicesOf(layout, RangesOf(shard, layout)),
                  tensor::AccumulationType(compute));
}

std::vector<StateSlice> ShardedOptimizer::State() const {
  std::vector<StateSlice> state =
      Describe(layout_, slices_, tensor::AccumulationType(ops_.compute()));
  const std::vector<Vector>* kinds[] = {&master_, &exp_avg_, &exp_avg_sq_};
  size_t next = 0;
  for (const std::vector<Vector>* kind : kinds) {
    for (const Slice& slice : slices_) {
      state[next++].data = Part(*kind, slice);
    }
  }
  return state;
}

}  // namespace megascale::optim
