#include "runtime/engine/stage_compute.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

absl::Span<std::byte> BytesOf(const tensor::Matrix& matrix) {
  MEGASCALE_CHECK(matrix.stride == matrix.cols);
  return {static_cast<std::byte*>(matrix.data),
          static_cast<size_t>(matrix.rows * matrix.cols) * tensor::SizeOf(matrix.dtype)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageCompute>> StageCompute::Create(const StageOptions& options) {
  auto stage = std::unique_ptr<StageCompute>(new StageCompute(options));
  if (options.batch_ring != nullptr) {
    ASSIGN_OR_RETURN(auto reader,
                     data::BatchRingReader::Create(options.batch_ring, options.batch_reader));
    stage->reader_ = std::make_unique<data::BatchRingReader>(std::move(reader));
  } else if (options.range.has_embedding || options.range.has_head) {
    return absl::InvalidArgumentError("engine: this rank reads batches but was given no ring");
  }
  return stage;
}

StageCompute::StageCompute(const StageOptions& options) : options_(options) {
  const auto& train = options.spec->train();
  batch_.resize(static_cast<size_t>(job::NumMicrobatches(*options.spec)) *
                static_cast<size_t>(train.micro_batch_size() * (train.seq_length() + 1)));
}

absl::Status StageCompute::LoadBatch(const plan::StepContext& context) {
  ASSIGN_OR_RETURN(const data::BatchView view, reader_->Wait(context.step, options_.timeout));
  auto out = batch_.begin();
  for (int m = 0; m < job::NumMicrobatches(*options_.spec); ++m) {
    const auto tokens = view.microbatch(options_.coordinate.data, m);
    out = std::copy(tokens.begin(), tokens.end(), out);
  }
  reader_->Release(context.step);
  return absl::OkStatus();
}

void StageCompute::FillSlot(const plan::Instruction& instruction) {
  const auto& train = options_.spec->train();
  const int seq = train.seq_length();
  const int samples = train.micro_batch_size();
  const int32_t* sample =
      batch_.data() + static_cast<int64_t>(instruction.id.microbatch()) * samples * (seq + 1);
  const int slot = instruction.activation_slot;
  for (int i = 0; i < samples; ++i, sample += seq + 1) {
    if (options_.range.has_embedding) {
      std::copy_n(sample, seq, options_.chunk->tokens(slot).as<int32_t>() + i * seq);
    }
    if (options_.range.has_head) {
      std::copy_n(sample + 1, seq, options_.chunk->targets(slot).as<int32_t>() + i * seq);
    }
  }
}

absl::Status StageCompute::Forward(const plan::Instruction& instruction,
                                   const plan::StepContext& context) {
  if (started_step_ != context.step) {
    started_step_ = context.step;
    loss_sum_ = 0;
    options_.ops->FillZero(options_.gradients);
  }
  if (reader_ != nullptr) FillSlot(instruction);
  const auto& train = options_.spec->train();
  const double tokens = static_cast<double>(train.global_batch_size()) * train.seq_length();
  options_.chunk->Forward(instruction.activation_slot,
                          {.gradient_scale = 1.0 / tokens, .sum = &loss_sum_});
  return absl::OkStatus();
}

absl::Status StageCompute::Backward(const plan::Instruction& instruction) {
  options_.chunk->Backward(instruction.activation_slot);
  return absl::OkStatus();
}

absl::Status StageCompute::Transfer(const plan::Instruction& instruction,
                                    comm::Communicator* communicator) {
  const int slot = instruction.activation_slot;
  const comm::CallInfo info = {instruction.id.MessageId().packed(), options_.timeout};
  switch (instruction.kind()) {
    case plan::OpKind::kSendActivation:
      return communicator->Send(instruction.peer, BytesOf(options_.chunk->output(slot)), info);
    case plan::OpKind::kReceiveActivation:
      return communicator->Recv(instruction.peer, BytesOf(options_.chunk->input(slot)), info);
    case plan::OpKind::kSendGradient:
      return communicator->Send(instruction.peer, BytesOf(options_.chunk->gradient(slot)), info);
    case plan::OpKind::kReceiveGradient:
      return communicator->Recv(instruction.peer, BytesOf(options_.chunk->gradient(slot)), info);
    default:
      return absl::InternalError(
          absl::StrCat("engine: ", instruction.id.ToString(), " is no transfer"));
  }
}

}  // namespace megascale::engine
