#include "runtime/engine/divergence.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/engine/checked_ops.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"

namespace megascale::engine {
namespace {

constexpr size_t kTextBytes = 240;
constexpr double kNothing = std::numeric_limits<double>::max();

// A rank's finding in the form that ranks exchange: 64-bit numbers.
struct Finding {
  double order = kNothing;  // the finding with the lowest order happened first
  // Breaks ties between tensor ranks, which share a pass and the bad values in it: the number of
  // the operator within the pass, which is the same on each of them.
  double operation = 0;
  std::array<char, kTextBytes> text = {};
};

// Returns the parameter at `address` if it lies in `space`, which holds the layout's flat space
// from element `first` on; otherwise "".
std::string ParameterIn(const tensor::Vector& space, int64_t first,
                        const model::ChunkLayout& layout, const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto* begin = static_cast<const std::byte*>(space.data);
  const auto size = static_cast<int64_t>(tensor::SizeOf(space.dtype));
  if (at == nullptr || at < begin || at >= begin + space.size * size) return "";
  const int64_t element = first + (at - begin) / size;
  for (const model::Parameter& parameter : layout.parameters()) {
    if (element >= parameter.offset && element < parameter.offset + parameter.size) {
      return parameter.name;
    }
  }
  return "";
}

// Returns a function that looks up addresses in the weights and gradients of `*current`'s chunk.
CheckedOps::ParameterAt ParametersOf(const DivergedStep& step,
                                     const plan::Instruction* const* current) {
  auto layouts = std::make_shared<std::vector<model::ChunkLayout>>();
  for (const ChunkState& chunk : *step.chunks) {
    layouts->emplace_back(step.part->config, chunk.range, step.part->tensor);
  }
  return [&step, layouts, current](const void* address) -> std::string {
    constexpr char kEmbedding[] = "model.embed_tokens.weight";
    const auto index = static_cast<size_t>(step.plan->IndexOfChunk((*current)->id.chunk()));
    const ChunkState& chunk = (*step.chunks)[index];
    const model::ChunkLayout& layout = (*layouts)[index];
    if (address != nullptr && address == chunk.head_weight.data) return kEmbedding;
    if (address != nullptr && address == chunk.head_gradient.data) return kEmbedding;
    std::string name = ParameterIn(chunk.weights, 0, layout, address);
    if (!name.empty() || (*current)->gradient_buffer == plan::kNoBuffer) return name;
    const GradientsInBuffer gradients = GradientsOf(chunk, **current, *step.gradient_buffers);
    return ParameterIn(gradients.elements, gradients.range.begin, layout, address);
  };
}

bool IsOfAMicrobatch(plan::OpKind kind) {
  return plan::OperationOf(kind).per_microbatch == plan::PerMicrobatch::kAlways;
}

// Returns the position of an instruction in a step without overlap: micro-batches one after the
// other, each forward through the chunks, then backward.
double OrderOf(const DivergedStep& step, const plan::Instruction& instruction) {
  const int num_chunks = step.plan->num_chunks;
  const int chunk = instruction.id.chunk();
  const int at =
      plan::OperationOf(instruction.kind()).goes_back ? 2 * num_chunks - 1 - chunk : chunk;
  return (static_cast<double>(instruction.id.microbatch()) * 2 * num_chunks + at) *
             step.part->mesh.data_size() +
         step.part->coordinate.data;
}

absl::Status RunOne(const DivergedStep& step, const plan::Instruction& instruction) {
  const auto now = [] { return base::RealClock().Monotonic(); };
  step.reporter->Begin(instruction, step.context, now());
  comm::Communicator* const communicator = step.communicator_of(instruction);
  absl::Status status;
  if (instruction.kind() == plan::OpKind::kForward) {
    status = step.stage->Forward(instruction, step.context, communicator);
  } else if (instruction.kind() == plan::OpKind::kBackward) {
    status = step.stage->Backward(instruction, communicator);
  } else if (instruction.kind() == plan::OpKind::kWeightGradient) {
    status = step.stage->WeightGradient(instruction, communicator);
  } else {
    // On the communicator's own stream, on which the transfer may end later.
    stream::Stream* const stream = step.stream_of(instruction);
    stream->RunAndWait([&] { status = step.stage->Transfer(instruction, communicator); });
    if (status.ok()) status = stream->Synchronize();
  }
  // Instructions run one after the other here, whatever their streams.
  // After an error, too: work that is still to come must not find its memory freed.
  status.Update(step.stream->Finish());
  step.reporter->End(instruction, now(), status);
  return status;
}

// Repeats this rank's part of the step. Within one micro-batch the plan's order follows its data,
// so no two ranks wait for each other.
absl::StatusOr<Finding> FindHere(const DivergedStep& step) {
  const plan::Instruction* current = nullptr;  // the instruction that computes
  std::vector<std::unique_ptr<device::Memory>> memory;
  ASSIGN_OR_RETURN(memory.emplace_back(), step.device->Allocate("a value", sizeof(double)));
  ASSIGN_OR_RETURN(memory.emplace_back(), step.device->AllocateHost("a value", sizeof(double)));
  const tensor::Vector value = {memory[0]->data(), tensor::DType::kF64, 1};
  double* const on_host = static_cast<double*>(memory[1]->data());
  absl::Status looked;  // the device's first failure
  const auto first_not_finite = [&](const ops::Matrix& x) {
    step.ops->FirstNotFinite(x, value);
    step.stream->Copy(on_host, value.data, sizeof(double));
    looked.Update(step.stream->Finish());
    return looked.ok() ? *on_host : 0.0;
  };
  CheckedOps checked(step.ops, ParametersOf(step, &current), first_not_finite);
  const auto allocate = [&](size_t bytes) -> absl::StatusOr<tensor::Arena> {
    ASSIGN_OR_RETURN(memory.emplace_back(), step.device->Allocate("the repeated step", bytes));
    return tensor::Arena::Over(memory.back()->data(), bytes);
  };
  std::vector<std::unique_ptr<model::TransformerChunk>> chunks;
  StageCompute::Computing computing = {{}, &checked};
  for (size_t i = 0; i < step.chunks->size(); ++i) {
    const ChunkState& chunk = (*step.chunks)[i];
    ASSIGN_OR_RETURN(
        chunks.emplace_back(),
        model::TransformerChunk::Create(step.part->ModelOptions(chunk.range, step.plan->slots[i]),
                                        &checked, chunk.Parameters(), step.peers, allocate));
    computing.chunks.push_back(chunks.back().get());
  }
  const StageCompute::Computing before = step.stage->SwapCompute(computing);
  const auto put_back = absl::MakeCleanup([&] { step.stage->SwapCompute(before); });
  int microbatches = 0;
  for (const plan::Instruction& instruction : step.plan->instructions) {
    if (!IsOfAMicrobatch(instruction.kind())) continue;
    microbatches = std::max(microbatches, instruction.id.microbatch() + 1);
  }
  Finding finding;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    for (const plan::Instruction& instruction : step.plan->instructions) {
      if (!IsOfAMicrobatch(instruction.kind())) continue;
      if (instruction.id.microbatch() != microbatch) continue;
      current = &instruction;
      RETURN_IF_ERROR(RunOne(step, instruction));
      RETURN_IF_ERROR(looked);
      if (checked.finding().empty() || finding.order < kNothing) continue;
      finding.order = OrderOf(step, instruction);
      finding.operation = static_cast<double>(checked.num_looked_at());
      const std::string text = absl::StrCat(checked.finding(), " (micro-batch ", microbatch,
                                            " of rank ", step.plan->rank, ")");
      std::strncpy(finding.text.data(), text.c_str(), kTextBytes - 1);
    }
  }
  return finding;
}

// Returns the first finding of all ranks.
absl::StatusOr<Finding> FindEverywhere(const DivergedStep& step) {
  ASSIGN_OR_RETURN(Finding first, FindHere(step));
  const auto& instructions = step.plan->instructions;
  const auto norm = std::find_if(instructions.begin(), instructions.end(), [](const auto& i) {
    return i.kind() == plan::OpKind::kReduceNorm;
  });
  MEGASCALE_CHECK(norm != instructions.end());
  RETURN_IF_ERROR(step.all->KeepFirst(&first,
                                      [](const Finding& a, const Finding& b) {
                                        return std::pair(a.order, a.operation) <
                                               std::pair(b.order, b.operation);
                                      },
                                      {norm->id.packed(), step.timeout}));
  return first;
}

}  // namespace

absl::Status ExplainDivergence(const DivergedStep& step, const absl::Status& diverged) {
  const absl::StatusOr<Finding> first = FindEverywhere(step);
  std::string found;
  if (!first.ok()) {
    found = absl::StrCat("where it began could not be found: ", first.status().message());
  } else if (first->order == kNothing) {
    found = "done again, every operator gave finite values: a sum over them overflowed";
  } else {
    found = absl::StrCat("it began in ", first->text.data());
  }
  return absl::Status(diverged.code(), absl::StrCat(diverged.message(), "; ", found));
}

}  // namespace megascale::engine
