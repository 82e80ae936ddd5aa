#include "runtime/engine/stage_compute.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/data/batches/document_begins.h"
#include "runtime/data/batches/loader.h"
#include "runtime/job/job_spec.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

tensor::Vector Flat(const tensor::Matrix& matrix) {
  MEGASCALE_CHECK(matrix.stride == matrix.cols);
  return {matrix.data, matrix.dtype, matrix.rows * matrix.cols};
}

bool ReadsBatches(const StageOptions& options) {
  return job::AttendsWithinDocuments(*options.spec) ||
         std::any_of(options.chunks->begin(), options.chunks->end(), [](const ChunkState& chunk) {
           return chunk.range.has_embedding || chunk.range.has_head;
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageCompute>> StageCompute::Create(const StageOptions& options) {
  auto stage = std::unique_ptr<StageCompute>(new StageCompute(options));
  if (options.batch_ring != nullptr) {
    ASSIGN_OR_RETURN(auto reader,
                     data::BatchRingReader::Create(options.batch_ring, options.batch_reader));
    stage->reader_ = std::make_unique<data::BatchRingReader>(std::move(reader));
  } else if (ReadsBatches(options)) {
    return absl::InvalidArgumentError("engine: this rank reads batches but was given no ring");
  }
  if (stage->reader_ == nullptr) return stage;
  stage->next_batch_ = stage->reader_->first_step() + 1;
  stage->windows_.resize(static_cast<size_t>(job::NumMicrobatches(*options.spec)));
  MEGASCALE_CHECK(options.load_stream != nullptr);
  const auto& train = options.spec->train();
  const auto samples = static_cast<size_t>(job::NumMicrobatches(*options.spec)) *
                       static_cast<size_t>(train.micro_batch_size());
  const auto seq = static_cast<size_t>(train.seq_length());
  const size_t tokens = samples * (seq + 1);
  const size_t begins = job::AttendsWithinDocuments(*options.spec) ? samples * seq : 0;
  ASSIGN_OR_RETURN(stage->numbers_,
                   device::UploadBuffer::Create(options.device, "the batch",
                                                (tokens + begins) * sizeof(int32_t)));
  auto* numbers = static_cast<int32_t*>(stage->numbers_->host());
  stage->batch_ = {numbers, tokens};
  stage->document_begins_ = {numbers + tokens, begins};
  return stage;
}

StageCompute::StageCompute(const StageOptions& options)
    : options_(options), computing_({{}, options.ops}) {
  for (const ChunkState& chunk : *options.chunks) {
    computing_.chunks.push_back(chunk.transformer.get());
  }
}

plan::HandlerMap StageCompute::Handlers(const CommunicatorOf& communicator_of) {
  using plan::Instruction;
  using plan::OpKind;
  using plan::StepContext;
  plan::HandlerMap handlers;
  for (const plan::Operation& operation : plan::AllOperations()) {
    if (!plan::IsTransfer(operation.kind)) continue;
    handlers[operation.kind] = [this, communicator_of](const Instruction& i, const StepContext&) {
      return Transfer(i, communicator_of(i));
    };
  }
  handlers[OpKind::kLoadBatch] = [this](const Instruction&, const StepContext&) {
    return LoadBatch();
  };
  handlers[OpKind::kForward] = [this, communicator_of](const Instruction& i,
                                                       const StepContext& context) {
    return Forward(i, context, communicator_of(i));
  };
  handlers[OpKind::kLoadWindows] = [this](const Instruction&, const StepContext&) {
    return LoadWindows();
  };
  handlers[OpKind::kEvaluate] = [this, communicator_of](const Instruction& i,
                                                        const StepContext& context) {
    return Evaluate(i, context, communicator_of(i));
  };
  handlers[OpKind::kBackward] = [this, communicator_of](const Instruction& i, const StepContext&) {
    return Backward(i, communicator_of(i));
  };
  handlers[OpKind::kWeightGradient] = [this, communicator_of](const Instruction& i,
                                                              const StepContext&) {
    return WeightGradient(i, communicator_of(i));
  };
  return handlers;
}

absl::Status StageCompute::ReadBatch() {
  ASSIGN_OR_RETURN(const data::BatchView view, reader_->Wait(next_batch_, options_.timeout));
  const plan::Coordinate at = options_.plan->mesh.CoordinateOf(options_.plan->rank);
  auto out = batch_.begin();
  for (int m = 0; m < job::NumMicrobatches(*options_.spec); ++m) {
    const auto tokens = view.microbatch(at.data, m);
    out = std::copy(tokens.begin(), tokens.end(), out);
  }
  reader_->Release(next_batch_++);
  return absl::OkStatus();
}

absl::Status StageCompute::LoadBatch() {
  RETURN_IF_ERROR(ReadBatch());
  if (!document_begins_.empty()) RETURN_IF_ERROR(FindDocuments());
  // Nothing else uses this memory: the steps before have ended, and this one's passes wait.
  numbers_->Upload(*options_.load_stream);
  return absl::OkStatus();
}

// Where the held-out text has ended, any token stands for the windows that are missing: they are
// computed, since every stage has micro-batches of one size, but their loss does not count.
absl::Status StageCompute::LoadWindows() {
  RETURN_IF_ERROR(ReadBatch());
  const auto window = static_cast<size_t>(options_.spec->train().seq_length()) + 1;
  const auto samples = static_cast<size_t>(options_.spec->train().micro_batch_size());
  std::fill(windows_.begin(), windows_.end(), 0);
  for (size_t i = 0; i * window < batch_.size(); ++i) {
    const absl::Span<int32_t> tokens = batch_.subspan(i * window, window);
    if (tokens[0] == data::kNoToken) {
      std::fill(tokens.begin(), tokens.end(), 0);
    } else {
      ++windows_[i / samples];
    }
  }
  if (!document_begins_.empty()) RETURN_IF_ERROR(FindDocuments());
  numbers_->Upload(*options_.load_stream);
  return absl::OkStatus();
}

int64_t StageCompute::num_windows() const {
  const bool has_head = options_.chunks->back().range.has_head;
  return has_head ? std::accumulate(windows_.begin(), windows_.end(), int64_t{0}) : 0;
}

absl::Status StageCompute::FindDocuments() {
  const int32_t end_token = reader_->end_token();
  if (end_token < 0) {
    return absl::InternalError(
        "engine: attention stays within documents, but the loader names no "
        "token that ends them");
  }
  const auto seq = static_cast<size_t>(options_.spec->train().seq_length());
  for (size_t i = 0; i * seq < document_begins_.size(); ++i) {
    data::FindDocumentBegins(batch_.subspan(i * (seq + 1), seq), end_token,
                             document_begins_.subspan(i * seq, seq));
  }
  return absl::OkStatus();
}

int StageCompute::FirstLayer(const plan::Instruction& instruction) const {
  const int last = instruction.id.bucket() + instruction.num_buckets - 1;
  return (*options_.chunks)[IndexOf(instruction)].buckets.at(static_cast<size_t>(last)).first_layer;
}

void StageCompute::BeginSums() {
  computing_.ops->FillZero(options_.loss_sum);
  const bool has_first_chunk = options_.plan->stage() == 0;  // its gradient is received
  if (options_.tied_ends.head_gradient && !has_first_chunk) {
    computing_.ops->FillZero(options_.tied_ends.head_gradient);
  }
}

void StageCompute::FillSlot(const plan::Instruction& instruction) {
  if (numbers_ == nullptr) return;
  const auto& train = options_.spec->train();
  const int seq = train.seq_length();
  const int samples = train.micro_batch_size();
  const int64_t first = static_cast<int64_t>(instruction.id.microbatch()) * samples;
  const auto* const numbers = static_cast<const int32_t*>(numbers_->device());
  const int32_t* sample = numbers + first * (seq + 1);
  const int32_t* document_begins = numbers + batch_.size();
  const int slot = instruction.activation_slot;
  const model::ChunkRange& range = (*options_.chunks)[IndexOf(instruction)].range;
  const model::TransformerChunk& chunk = ChunkOf(instruction);
  const auto copy = [&](const int32_t* from, const tensor::Vector& to, int i) {
    options_.stream->Copy(to.as<int32_t>() + i * seq, from, sizeof(int32_t) * seq);
  };
  for (int i = 0; i < samples; ++i, sample += seq + 1) {
    if (range.has_embedding) copy(sample, chunk.tokens(slot), i);
    if (range.has_head) copy(sample + 1, chunk.targets(slot), i);
    if (!document_begins_.empty()) {
      copy(document_begins + (first + i) * seq, chunk.document_begins(slot), i);
    }
  }
}

void StageCompute::UseGradientBuffer(const plan::Instruction& instruction) {
  if (instruction.gradient_buffer == plan::kNoBuffer) return;
  const ChunkState& chunk = (*options_.chunks)[IndexOf(instruction)];
  const GradientsInBuffer gradients = GradientsOf(chunk, instruction, *options_.gradient_buffers);
  if (instruction.begins_sum) computing_.ops->FillZero(gradients.elements);
  TakeCarried(instruction, gradients);
  ChunkOf(instruction).AddGradientsTo(gradients.elements, gradients.range.begin);
}

void StageCompute::TakeCarried(const plan::Instruction& piece, const GradientsInBuffer& gradients) {
  if (piece.id.bucket() == 0) return;
  const ChunkState& chunk = (*options_.chunks)[IndexOf(piece)];
  const model::FlatRange& range =
      chunk.in_buffer[static_cast<size_t>(piece.id.bucket()) - 1].carried;
  if (range.count == 0) return;
  computing_.ops->Cast(Slice(options_.carried, {0, range.count}), gradients.Part(range));
}

void StageCompute::Carry(const plan::Instruction& piece) {
  if (piece.gradient_buffer == plan::kNoBuffer) return;
  const ChunkState& chunk = (*options_.chunks)[IndexOf(piece)];
  const model::FlatRange& range = chunk.in_buffer[static_cast<size_t>(piece.id.bucket())].carried;
  if (range.count == 0) return;
  const GradientsInBuffer gradients = GradientsOf(chunk, piece, *options_.gradient_buffers);
  computing_.ops->Cast(gradients.Part(range), Slice(options_.carried, {0, range.count}));
}

template <typename Pass>
absl::Status StageCompute::Together(const plan::Instruction& instruction,
                                    comm::Communicator* communicator, const Pass& pass) {
  if (options_.peers != nullptr) options_.peers->Begin(instruction.id, communicator);
  UseGradientBuffer(instruction);
  pass(ChunkOf(instruction), instruction.activation_slot);
  if (plan::OperationOf(instruction.kind()).goes_back) Carry(instruction);
  return options_.peers != nullptr ? options_.peers->status() : absl::OkStatus();
}

absl::Status StageCompute::Forward(const plan::Instruction& instruction,
                                   const plan::StepContext& context,
                                   comm::Communicator* communicator) {
  if (started_step_ != context.step) {
    started_step_ = context.step;
    BeginSums();
  }
  if (reader_ != nullptr) FillSlot(instruction);
  const auto& train = options_.spec->train();
  const double tokens = static_cast<double>(train.global_batch_size()) * train.seq_length();
  return Together(instruction, communicator, [&](model::TransformerChunk& chunk, int slot) {
    chunk.Forward(slot, {.gradient_scale = 1.0 / tokens, .sum = options_.loss_sum});
  });
}

absl::Status StageCompute::Evaluate(const plan::Instruction& instruction,
                                    const plan::StepContext& context,
                                    comm::Communicator* communicator) {
  if (started_evaluation_ != context) {
    started_evaluation_ = context;
    computing_.ops->FillZero(options_.held_out_sum);
  }
  if (reader_ != nullptr) FillSlot(instruction);
  const bool has_head = (*options_.chunks)[IndexOf(instruction)].range.has_head;
  const int counted = has_head ? windows_[static_cast<size_t>(instruction.id.microbatch())] : 0;
  return Together(instruction, communicator, [&](model::TransformerChunk& chunk, int slot) {
    chunk.Evaluate(slot, options_.spec->train().micro_batch_size(), counted, options_.held_out_sum);
  });
}

StageCompute::Computing StageCompute::SwapCompute(Computing computing) {
  started_step_ = -1;
  for (const tensor::Vector& buffer : *options_.gradient_buffers) options_.ops->FillZero(buffer);
  for (const ChunkState& chunk : *options_.chunks) {
    if (chunk.early_gradients) options_.ops->FillZero(chunk.early_gradients);
  }
  return std::exchange(computing_, std::move(computing));
}

absl::Status StageCompute::Backward(const plan::Instruction& instruction,
                                    comm::Communicator* communicator) {
  return Together(instruction, communicator, [&](model::TransformerChunk& chunk, int slot) {
    if (instruction.input_only) {
      chunk.BackwardInput(slot);
    } else {
      chunk.Backward(slot, FirstLayer(instruction));
    }
  });
}

absl::Status StageCompute::WeightGradient(const plan::Instruction& instruction,
                                          comm::Communicator* communicator) {
  return Together(instruction, communicator, [&](model::TransformerChunk& chunk, int slot) {
    chunk.BackwardWeights(slot, FirstLayer(instruction));
  });
}

absl::Status StageCompute::Transfer(const plan::Instruction& instruction,
                                    comm::Communicator* communicator) {
  const comm::CallInfo info = {instruction.id.MessageId().packed(), options_.timeout};
  switch (instruction.kind()) {
    case plan::OpKind::kSendEmbedding:
    case plan::OpKind::kSendHead:
      return communicator->Send(instruction.peer, options_.tied_ends.embedding, info);
    case plan::OpKind::kReceiveEmbedding:
    case plan::OpKind::kReceiveHead:
      return communicator->Recv(instruction.peer, options_.tied_ends.embedding, info);
    case plan::OpKind::kSendHeadGradient:
      return communicator->Send(instruction.peer, options_.tied_ends.head_gradient, info);
    case plan::OpKind::kReceiveHeadGradient:
      return communicator->Recv(instruction.peer, options_.tied_ends.head_gradient, info);
    default:
      break;
  }
  const int slot = instruction.activation_slot;
  const model::TransformerChunk& chunk = ChunkOf(instruction);
  switch (instruction.kind()) {
    case plan::OpKind::kSendActivation:
    case plan::OpKind::kSendEvaluated:
      return communicator->Send(instruction.peer, Flat(chunk.output(slot)), info);
    case plan::OpKind::kReceiveActivation:
    case plan::OpKind::kReceiveEvaluated:
      return communicator->Recv(instruction.peer, Flat(chunk.input(slot)), info);
    case plan::OpKind::kSendGradient:
      return communicator->Send(instruction.peer, Flat(chunk.gradient(slot)), info);
    case plan::OpKind::kReceiveGradient:
      return communicator->Recv(instruction.peer, Flat(chunk.gradient(slot)), info);
    default:
      return absl::InternalError(
          absl::StrCat("engine: ", instruction.id.ToString(), " is no transfer"));
  }
}

}  // namespace megascale::engine
