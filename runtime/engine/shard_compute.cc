#include "runtime/engine/shard_compute.h"

#include <algorithm>
#include <cmath>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/optim/schedule.h"

namespace megascale::engine {
namespace {

// Element `index` of a vector of numbers.
tensor::Vector NumberAt(const tensor::Vector& numbers, int64_t index) {
  return Slice(numbers, {index, 1});
}

// An evaluation's losses go the way of a step's, with the number of windows in the place of the sum
// of squares.
constexpr ops::RankNumber kRankNumWindows = ops::kRankSumOfSquares;

// What member `index` of a group contributes to the group's norms.
tensor::Vector NormOf(const tensor::Vector& norms, int index) {
  return Slice(norms, {int64_t{index} * ops::kNumRankNumbers, ops::kNumRankNumbers});
}

}  // namespace

ShardNumbers::ShardNumbers(const plan::Mesh& mesh, const ChunkStates& chunks) {
  const auto of_size = [](int64_t size) {
    return tensor::Vector{nullptr, tensor::DType::kF64, size};
  };
  const auto norms_of = [&](int members) {
    return of_size(int64_t{members} * ops::kNumRankNumbers);
  };
  if (mesh.tensor_size() > 1) tensor_norms = norms_of(mesh.tensor_size());
  data_norms = norms_of(mesh.data_size());
  pipeline_norms = norms_of(mesh.pipeline_size());
  step = of_size(ops::kNumStepNumbers);
  squares = of_size(static_cast<int64_t>(chunks.size()));
  losses = of_size(ops::kNumRankNumbers);
  for (const ChunkState& chunk : chunks) {
    trust_sums.push_back(
        of_size(int64_t{chunk.optimizer->shard().num_parts()} * chunk.optimizer->num_trust_sums()));
  }
}

std::vector<tensor::Vector*> ShardNumbers::spaces() {
  std::vector<tensor::Vector*> all = {&data_norms, &pipeline_norms, &step, &squares, &losses};
  if (tensor_norms.size > 0) all.push_back(&tensor_norms);
  for (tensor::Vector& sums : trust_sums) all.push_back(&sums);
  return all;
}

absl::StatusOr<std::unique_ptr<ShardCompute>> ShardCompute::Create(const ShardOptions& options) {
  auto shard = absl::WrapUnique(new ShardCompute(options));
  ASSIGN_OR_RETURN(shard->pinned_,
                   options.device->AllocateHost("the numbers of a step", sizeof(Pinned)));
  return shard;
}

absl::Status ShardCompute::AllGather(const plan::Instruction& instruction,
                                     comm::Communicator* communicator,
                                     const tensor::Vector& numbers) const {
  const int64_t part = numbers.size / communicator->size();
  return communicator->AllGather(Slice(numbers, {part * communicator->rank(), part}), numbers,
                                 {instruction.id.packed(), options_.timeout});
}

plan::HandlerMap ShardCompute::Handlers(const CommunicatorOf& communicator_of) {
  using plan::Instruction;
  using plan::OpKind;
  using plan::StepContext;
  plan::HandlerMap handlers;
  using Method = absl::Status (ShardCompute::*)(const Instruction&);
  const auto alone = [this](Method method) {
    return [this, method](const Instruction& i, const StepContext&) { return (this->*method)(i); };
  };
  using Exchange = absl::Status (ShardCompute::*)(const Instruction&, comm::Communicator*);
  const auto together = [&](Exchange method) {
    return [this, method, communicator_of](const Instruction& i, const StepContext&) {
      return (this->*method)(i, communicator_of(i));
    };
  };
  handlers[OpKind::kAddHeadGradient] = alone(&ShardCompute::AddHeadGradient);
  handlers[OpKind::kSumReplicated] = together(&ShardCompute::SumReplicated);
  handlers[OpKind::kReduceGradients] = together(&ShardCompute::ReduceGradients);
  handlers[OpKind::kGatherTensorNorms] = together(&ShardCompute::GatherTensorNorms);
  handlers[OpKind::kGatherDataNorms] = together(&ShardCompute::GatherDataNorms);
  handlers[OpKind::kReduceNorm] = [this, communicator_of](const Instruction& i,
                                                          const StepContext& context) {
    return ReduceNorm(i, context, communicator_of(i));
  };
  handlers[OpKind::kOptimizerUpdate] = alone(&ShardCompute::OptimizerUpdate);
  handlers[OpKind::kGatherTensorTrustSums] = together(&ShardCompute::GatherTensorTrustSums);
  handlers[OpKind::kGatherTrustSums] = together(&ShardCompute::GatherTrustSums);
  handlers[OpKind::kOptimizerStep] = alone(&ShardCompute::OptimizerStep);
  handlers[OpKind::kGatherParameters] = together(&ShardCompute::GatherParameters);
  handlers[OpKind::kGatherForEvaluation] = [this, communicator_of](const Instruction& i,
                                                                   const StepContext& context) {
    return GatherForEvaluation(i, context, communicator_of(i));
  };
  handlers[OpKind::kGatherTensorLosses] = together(&ShardCompute::GatherTensorNorms);
  handlers[OpKind::kGatherDataLosses] = together(&ShardCompute::GatherDataNorms);
  handlers[OpKind::kGatherLosses] = together(&ShardCompute::GatherLosses);
  return handlers;
}

absl::Status ShardCompute::AddHeadGradient(const plan::Instruction& instruction) {
  const GradientsInBuffer gradients =
      GradientsOf(ChunkOf(instruction), instruction, *options_.gradient_buffers);
  // The embedding comes first in the flat space.
  const model::FlatRange embedding = {0, options_.head_gradient.size};
  options_.ops->AddScaled(1.0, options_.head_gradient, gradients.Part(embedding));
  return absl::OkStatus();
}

absl::Status ShardCompute::SumReplicated(const plan::Instruction& instruction,
                                         comm::Communicator* communicator) {
  const ChunkState& chunk = ChunkOf(instruction);
  const GradientsInBuffer gradients = GradientsOf(chunk, instruction, *options_.gradient_buffers);
  const tensor::DType dtype = gradients.elements.dtype;
  MEGASCALE_CHECK(options_.replicated.dtype == dtype);
  stream::Stream& stream = *options_.stream_of(instruction.stream);
  const std::vector<layout::CopiedRange>& copied = chunk.replicated[BucketOf(instruction)];
  // Calls `move` with each replicated tensor's gradient and its place among the packed ones.
  const auto for_each = [&](const auto& move) {
    int64_t packed = 0;
    for (const layout::CopiedRange& copies : copied) {
      const int64_t begin = packed + copies.slot * copies.range.count;
      move(gradients.Part(copies.range), Slice(options_.replicated, {begin, copies.range.count}));
      packed += copies.summed();
    }
    return packed;
  };
  int64_t zeros_begin = 0;
  for (const layout::CopiedRange& copies : copied) {
    const model::FlatRange all = {zeros_begin, copies.summed()};
    if (copies.num_slots > 1) options_.ops->FillZero(Slice(options_.replicated, all));
    zeros_begin += copies.summed();
  }
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

void ShardCompute::ContributeNorm(const plan::Instruction& instruction,
                                  const tensor::Vector& mine) {
  const ShardNumbers& numbers = options_.numbers;
  const bool counts = coordinate().tensor == 0;
  options_.run_on_compute_threads(instruction.stream, [&] {
    ops::Ops& ops = *options_.compute_ops;
    ops.FillZero(numbers.squares);
    ops.FillZero(mine);
    for (size_t i = 0; i < options_.chunks->size(); ++i) {
      const ChunkState& chunk = (*options_.chunks)[i];
      chunk.optimizer->AddSumOfSquares(chunk.gradient_shard,
                                       NumberAt(numbers.squares, static_cast<int64_t>(i)));
    }
    ops.AddTotal(numbers.squares, NumberAt(mine, ops::kRankSumOfSquares));
    if (counts) ops.Cast(options_.stage->loss_sum(), NumberAt(mine, ops::kRankLossSum));
  });
  pinned().stop = stop_.load();
  options_.stream_of(instruction.stream)
      ->Copy(NumberAt(mine, ops::kRankStop).data, &pinned().stop, sizeof(double));
}

void ShardCompute::ContributeLosses(const plan::Instruction& instruction,
                                    const tensor::Vector& mine) {
  // Tensor ranks have the same windows.
  const int64_t num_windows = coordinate().tensor == 0 ? options_.stage->num_windows() : 0;
  options_.run_on_compute_threads(instruction.stream, [&] {
    ops::Ops& ops = *options_.compute_ops;
    ops.FillZero(mine);
    if (num_windows > 0) {
      ops.Cast(options_.stage->held_out_sum(), NumberAt(mine, ops::kRankLossSum));
    }
  });
  pinned().num_windows = static_cast<double>(num_windows);
  options_.stream_of(instruction.stream)
      ->Copy(NumberAt(mine, kRankNumWindows).data, &pinned().num_windows, sizeof(double));
}

void ShardCompute::Contribute(const plan::Instruction& instruction, const tensor::Vector& mine) {
  if (plan::OperationOf(instruction.kind()).for_evaluation) {
    ContributeLosses(instruction, mine);
  } else {
    ContributeNorm(instruction, mine);
  }
}

absl::Status ShardCompute::GatherTensorNorms(const plan::Instruction& instruction,
                                             comm::Communicator* communicator) {
  const ShardNumbers& numbers = options_.numbers;
  Contribute(instruction, NormOf(numbers.tensor_norms, communicator->rank()));
  RETURN_IF_ERROR(AllGather(instruction, communicator, numbers.tensor_norms));
  options_.ops->CombineNorms(
      {.ranks = numbers.tensor_norms, .sums = NormOf(numbers.data_norms, coordinate().data)});
  return absl::OkStatus();
}

absl::Status ShardCompute::GatherDataNorms(const plan::Instruction& instruction,
                                           comm::Communicator* communicator) {
  const ShardNumbers& numbers = options_.numbers;
  if (numbers.tensor_norms.size == 0) {
    Contribute(instruction, NormOf(numbers.data_norms, communicator->rank()));
  }
  RETURN_IF_ERROR(AllGather(instruction, communicator, numbers.data_norms));
  options_.ops->CombineNorms(
      {.ranks = numbers.data_norms, .sums = NormOf(numbers.pipeline_norms, coordinate().pipeline)});
  return absl::OkStatus();
}

absl::Status ShardCompute::ReduceNorm(const plan::Instruction& instruction,
                                      const plan::StepContext& context,
                                      comm::Communicator* communicator) {
  const ShardNumbers& numbers = options_.numbers;
  const auto& train = options_.spec->train();
  pinned().rate_and_step = {
      optim::LearningRate(options_.spec->optimizer(), train.steps(), context.step),
      static_cast<double>(context.step)};
  static_assert(ops::kLearningRate == 0 && ops::kStep == 1);
  stream::Stream& stream = *options_.stream_of(instruction.stream);
  stream.Copy(numbers.step.data, &pinned().rate_and_step, sizeof(pinned().rate_and_step));
  RETURN_IF_ERROR(AllGather(instruction, communicator, numbers.pipeline_norms));
  options_.ops->CombineNorms({.ranks = numbers.pipeline_norms,
                              .clip_grad = options_.spec->optimizer().clip_grad(),
                              .step_numbers = numbers.step});
  stream.Copy(&pinned().step, numbers.step.data, sizeof(pinned().step));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> ShardCompute::ResultOf(const plan::StepContext& context) {
  const auto& numbers = pinned().step;
  const auto& train = options_.spec->train();
  const int64_t tokens = static_cast<int64_t>(train.global_batch_size()) * train.seq_length();
  StepResult result;
  auto& record = result.record;
  record.set_step(context.step);
  record.set_attempt(context.attempt);
  record.set_tokens(tokens);
  record.set_loss(numbers[ops::kLossSum] / static_cast<double>(tokens));
  record.set_grad_norm(std::sqrt(numbers[ops::kSumOfSquares]));
  record.set_lr(numbers[ops::kLearningRate]);
  result.stop = static_cast<StopFlag>(numbers[ops::kStop]);
  if (numbers[ops::kIsFinite] == 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "rank ", options_.plan->rank, ": step ", context.step, ": ",
        plan::InstructionId(plan::OpKind::kReduceNorm).ToString(), ": training diverged at step ",
        context.step, ": loss ", record.loss(), ", gradient norm ", record.grad_norm(),
        "; lower optimizer.lr, or look at the data"));
  }
  return result;
}

optim::StepArgs ShardCompute::StepArgsOf(const plan::Instruction& instruction) const {
  return {.grad = ChunkOf(instruction).gradient_shard,
          .step_numbers = options_.numbers.step,
          .trust_sums = options_.numbers.trust_sums[IndexOf(instruction)]};
}

absl::Status ShardCompute::OptimizerUpdate(const plan::Instruction& instruction) {
  optim::ShardedOptimizer& optimizer = *ChunkOf(instruction).optimizer;
  const int64_t num_sums = optimizer.num_trust_sums();
  const tensor::Vector sums = Slice(options_.numbers.trust_sums[IndexOf(instruction)],
                                    {optimizer.shard().part_index() * num_sums, num_sums});
  options_.run_on_compute_threads(instruction.stream, [&] {
    options_.await_snapshot();
    optimizer.MakeUpdate(StepArgsOf(instruction), sums);
  });
  return absl::OkStatus();
}

absl::Status ShardCompute::GatherTensorTrustSums(const plan::Instruction& instruction,
                                                 comm::Communicator* communicator) {
  const tensor::Vector& all = options_.numbers.trust_sums[IndexOf(instruction)];
  const int64_t of_replica = all.size / options_.plan->mesh.data_size();
  return AllGather(instruction, communicator,
                   Slice(all, {coordinate().data * of_replica, of_replica}));
}

absl::Status ShardCompute::GatherTrustSums(const plan::Instruction& instruction,
                                           comm::Communicator* communicator) {
  return AllGather(instruction, communicator, options_.numbers.trust_sums[IndexOf(instruction)]);
}

absl::Status ShardCompute::OptimizerStep(const plan::Instruction& instruction) {
  options_.run_on_compute_threads(instruction.stream, [&] {
    options_.await_snapshot();
    ChunkOf(instruction).optimizer->Step(StepArgsOf(instruction));
  });
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

absl::Status ShardCompute::GatherForEvaluation(const plan::Instruction& instruction,
                                               const plan::StepContext& context,
                                               comm::Communicator* communicator) {
  return context.batch == 0 ? GatherParameters(instruction, communicator) : absl::OkStatus();
}

absl::Status ShardCompute::GatherLosses(const plan::Instruction& instruction,
                                        comm::Communicator* communicator) {
  const ShardNumbers& numbers = options_.numbers;
  RETURN_IF_ERROR(AllGather(instruction, communicator, numbers.pipeline_norms));
  options_.ops->CombineNorms({.ranks = numbers.pipeline_norms, .sums = numbers.losses});
  options_.stream_of(instruction.stream)
      ->Copy(&pinned().losses, numbers.losses.data, sizeof(pinned().losses));
  return absl::OkStatus();
}

ShardCompute::BatchLoss ShardCompute::LossOfWindows() const {
  const auto& losses = pinned().losses;
  return {.nats = losses[ops::kRankLossSum], .num_windows = std::llround(losses[kRankNumWindows])};
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
