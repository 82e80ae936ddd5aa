#include "runtime/engine/shard_compute.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/optim/schedule.h"

namespace megascale::engine {
namespace {

// The numbers that a rank contributes to the exchange of norms.
enum NormField { kSumOfSquares, kLossSum, kStop, kNumNormFields };

}  // namespace

ShardCompute::ShardCompute(const ShardOptions& options) : options_(options) {
  for (const ChunkState& chunk : *options.chunks) {
    const auto num_parts = static_cast<size_t>(chunk.optimizer->shard().num_parts());
    trust_sums_.emplace_back(num_parts * chunk.optimizer->num_trust_sums());
  }
}

absl::Status ShardCompute::AllGather(const plan::Instruction& instruction,
                                     comm::Communicator* communicator,
                                     absl::Span<double> numbers) const {
  const auto size = static_cast<int64_t>(numbers.size());
  const int64_t part = size / communicator->size();
  return communicator->AllGather(
      {.data = numbers.data() + part * communicator->rank(),
       .dtype = tensor::DType::kF64,
       .size = part},
      {.data = numbers.data(), .dtype = tensor::DType::kF64, .size = size},
      {instruction.id.packed(), options_.timeout});
}

absl::Status ShardCompute::SumReplicated(const plan::Instruction& instruction,
                                         comm::Communicator* communicator) {
  const ChunkState& chunk = ChunkOf(instruction);
  const GradientsInBuffer gradients = GradientsOf(chunk, instruction, *options_.gradient_buffers);
  const tensor::DType dtype = gradients.elements.dtype;
  MEGASCALE_CHECK(options_.replicated.dtype == dtype);
  stream::Stream& stream = *options_.stream_of(instruction.stream);
  // Calls `move` with each replicated tensor's gradient and its place among the packed ones.
  const auto for_each = [&](const auto& move) {
    int64_t packed = 0;
    for (const model::FlatRange& range : chunk.replicated[BucketOf(instruction)]) {
      move(gradients.Part(range), Slice(options_.replicated, {packed, range.count}));
      packed += range.count;
    }
    return packed;
  };
  const auto copy = [&stream](const tensor::Vector& from, const tensor::Vector& to) {
    stream.Copy(to.data, from.data, static_cast<size_t>(from.bytes()));
  };
  const int64_t size = for_each(copy);
  MEGASCALE_CHECK(size <= options_.replicated.size);
  RETURN_IF_ERROR(communicator->AllReduce({options_.replicated.data, dtype, size},
                                          {instruction.id.packed(), options_.timeout}));
  for_each([&copy](const tensor::Vector& gradient, const tensor::Vector& packed) {
    copy(packed, gradient);
  });
  return absl::OkStatus();
}

absl::Status ShardCompute::ReduceGradients(const plan::Instruction& instruction,
                                           comm::Communicator* communicator) {
  const ChunkState& chunk = ChunkOf(instruction);
  const size_t bucket = BucketOf(instruction);
  const GradientsInBuffer buffer = GradientsOf(chunk, instruction, *options_.gradient_buffers);
  const tensor::Vector gradients = buffer.Part(chunk.buckets[bucket].range);
  const tensor::Vector reduced = buffer.Part(chunk.optimizer->ranges()[bucket]);
  RETURN_IF_ERROR(
      communicator->ReduceScatter(gradients, reduced, {instruction.id.packed(), options_.timeout}));
  const tensor::Vector& sum = chunk.gradient_shard[bucket];
  if (sum.data == reduced.data) return absl::OkStatus();
  if (instruction.begins_sum) {
    options_.ops->Cast(reduced, sum);
  } else {
    options_.ops->AddScaled(1.0, reduced, sum);
  }
  return absl::OkStatus();
}

absl::Status ShardCompute::ReduceNorm(const plan::Instruction& instruction,
                                      const plan::StepContext& context,
                                      comm::Communicator* communicator) {
  norms_.assign(static_cast<size_t>(communicator->size()) * kNumNormFields, 0.0);
  double* mine = norms_.data() + communicator->rank() * kNumNormFields;
  options_.run_on_compute_threads(instruction.stream, [&] {
    for (const ChunkState& chunk : *options_.chunks) {
      mine[kSumOfSquares] += chunk.optimizer->SumOfSquares(chunk.gradient_shard);
    }
  });
  const bool counts = options_.plan->mesh.CoordinateOf(options_.plan->rank).tensor == 0;
  mine[kLossSum] = counts ? options_.stage->loss_sum() : 0;
  mine[kStop] = stop_.load();
  RETURN_IF_ERROR(AllGather(instruction, communicator, absl::MakeSpan(norms_)));

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
                                              "; lower optimizer.lr, or look at the data"));
  }
  return absl::OkStatus();
}

optim::StepArgs ShardCompute::StepArgsOf(const plan::Instruction& instruction,
                                         const plan::StepContext& context) const {
  const ChunkState& chunk = ChunkOf(instruction);
  return {.grad = chunk.gradient_shard,
          .clip_factor = optim::ClipFactor(sum_of_squares_, options_.spec->optimizer().clip_grad()),
          .lr = result_.record.lr(),
          .step = context.step,
          .trust_sums = trust_sums_[IndexOf(instruction)]};
}

absl::Status ShardCompute::OptimizerUpdate(const plan::Instruction& instruction,
                                           const plan::StepContext& context) {
  optim::ShardedOptimizer& optimizer = *ChunkOf(instruction).optimizer;
  const auto num_sums = static_cast<size_t>(optimizer.num_trust_sums());
  const auto part = static_cast<size_t>(optimizer.shard().part_index());
  const absl::Span<double> sums =
      absl::MakeSpan(trust_sums_[IndexOf(instruction)]).subspan(part * num_sums, num_sums);
  options_.run_on_compute_threads(
      instruction.stream, [&] { optimizer.MakeUpdate(StepArgsOf(instruction, context), sums); });
  return absl::OkStatus();
}

absl::Status ShardCompute::GatherTrustSums(const plan::Instruction& instruction,
                                           comm::Communicator* communicator) {
  return AllGather(instruction, communicator, absl::MakeSpan(trust_sums_[IndexOf(instruction)]));
}

absl::Status ShardCompute::OptimizerStep(const plan::Instruction& instruction,
                                         const plan::StepContext& context) {
  options_.run_on_compute_threads(
      instruction.stream, [&] { ChunkOf(instruction).optimizer->Step(StepArgsOf(instruction, context)); });
  return absl::OkStatus();
}

absl::Status ShardCompute::GatherParameters(const plan::Instruction& instruction,
                                            comm::Communicator* communicator) {
  const ChunkState& chunk = ChunkOf(instruction);
  const size_t bucket = BucketOf(instruction);
  return communicator->AllGather(chunk.optimizer->weights()[bucket],
                                 Slice(chunk.weights, chunk.buckets[bucket].range),
                                 {instruction.id.packed(), options_.timeout});
}

void ShardCompute::PublishParameters() {
  for (const ChunkState& chunk : *options_.chunks) chunk.optimizer->PublishWeights();
}

void ShardCompute::RaiseStop(StopFlag flag) {
  uint8_t now = stop_.load();
  while (now < static_cast<uint8_t>(flag) &&
         !stop_.compare_exchange_weak(now, static_cast<uint8_t>(flag))) {
  }
}

}  // namespace megascale::engine
