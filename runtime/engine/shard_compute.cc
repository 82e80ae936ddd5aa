#include "runtime/engine/shard_compute.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/optim/schedule.h"

namespace megascale::engine {
namespace {

// What a rank gives to the exchange of norms.
enum NormField { kSumOfSquares, kLossSum, kStop, kNumNormFields };

}  // namespace

tensor::Vector ShardCompute::ShardOf(const tensor::Vector& flat) const {
  const model::FlatRange range = options_.optimizer->range();
  return {.data = flat.as<std::byte>() + range.begin * tensor::SizeOf(flat.dtype),
          .dtype = flat.dtype,
          .size = range.count};
}

absl::Status ShardCompute::ReduceGradients(const plan::Instruction& instruction,
                                           comm::Communicator* communicator) {
  return communicator->ReduceScatter(options_.gradients, ShardOf(options_.gradients),
                                     {instruction.id.packed(), options_.timeout});
}

absl::Status ShardCompute::ReduceNorm(const plan::Instruction& instruction,
                                      const plan::StepContext& context,
                                      comm::Communicator* communicator) {
  norms_.assign(static_cast<size_t>(communicator->size()) * kNumNormFields, 0.0);
  double* mine = norms_.data() + communicator->rank() * kNumNormFields;
  mine[kSumOfSquares] = options_.optimizer->SumOfSquares(ShardOf(options_.gradients));
  mine[kLossSum] = options_.stage->loss_sum();
  mine[kStop] = stop_.load();
  const tensor::Vector input = {.data = mine, .dtype = tensor::DType::kF64, .size = kNumNormFields};
  const tensor::Vector output = {.data = norms_.data(),
                                 .dtype = tensor::DType::kF64,
                                 .size = static_cast<int64_t>(norms_.size())};
  RETURN_IF_ERROR(
      communicator->AllGather(input, output, {instruction.id.packed(), options_.timeout}));

  sum_of_squares_ = 0;
  double loss_sum = 0;
  double stop = 0;
  for (size_t i = 0; i < norms_.size(); i += kNumNormFields) {
    sum_of_squares_ += norms_[i + kSumOfSquares];
    loss_sum += norms_[i + kLossSum];
    stop = std::max(stop, norms_[i + kStop]);
  }
  const auto& train = options_.spec->train();
  const int64_t tokens = static_cast<int64_t>(train.global_batch_size()) * train.seq_length();
  auto& record = result_.record;
  record.set_step(context.step);
  record.set_attempt(context.attempt);
  record.set_tokens(tokens);
  record.set_loss(loss_sum / static_cast<double>(tokens));
  record.set_grad_norm(std::sqrt(sum_of_squares_));
  record.set_lr(optim::LearningRate(options_.spec->optimizer(), train.steps(), context.step));
  result_.stop = static_cast<StopFlag>(stop);
  if (!std::isfinite(record.loss()) || !std::isfinite(record.grad_norm())) {
    return absl::OutOfRangeError(absl::StrCat("training diverged at step ", context.step, ": loss ",
                                              record.loss(), ", gradient norm ", record.grad_norm(),
                                              "; lower optimizer.lr"));
  }
  return absl::OkStatus();
}

absl::Status ShardCompute::OptimizerStep(const plan::StepContext& context) {
  options_.optimizer->Step(
      {.grad = ShardOf(options_.gradients),
       .compute_copy = ShardOf(options_.weights),
       .clip_factor = optim::ClipFactor(sum_of_squares_, options_.spec->optimizer().clip_grad()),
       .lr = result_.record.lr(),
       .step = context.step});
  return absl::OkStatus();
}

absl::Status ShardCompute::GatherParameters(const plan::Instruction& instruction,
                                            comm::Communicator* communicator) {
  return communicator->AllGather(ShardOf(options_.weights), options_.weights,
                                 {instruction.id.packed(), options_.timeout});
}

absl::Status ShardCompute::PublishParameters(comm::Communicator* communicator) {
  options_.optimizer->CopyParametersOut(ShardOf(options_.weights));
  const plan::InstructionId id(plan::OpKind::kGatherParameters);
  return communicator->AllGather(ShardOf(options_.weights), options_.weights,
                                 {id.packed(), options_.timeout});
}

void ShardCompute::RaiseStop(StopFlag flag) {
  uint8_t now = stop_.load();
  while (now < static_cast<uint8_t>(flag) &&
         !stop_.compare_exchange_weak(now, static_cast<uint8_t>(flag))) {
  }
}

}  // namespace megascale::engine
