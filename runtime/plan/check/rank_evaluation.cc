#include "runtime/plan/check/rank_evaluation.h"

#include <algorithm>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/check/instruction_place.h"

namespace megascale::plan {
namespace {

class EvaluationCheck {
 public:
  explicit EvaluationCheck(const RankIndex& index) : index_(index), plan_(index.plan()) {}

  absl::Status Check() const {
    for (const Instruction& instruction : plan_.instructions) {
      RETURN_IF_ERROR(CheckPlace(index_, instruction));
      RETURN_IF_ERROR(CheckMemory(instruction));
    }
    for (int chunk = plan_.stage(); chunk < plan_.num_chunks; chunk += plan_.mesh.pipeline_size()) {
      for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
        RETURN_IF_ERROR(CheckPass(chunk, microbatch));
      }
    }
    RETURN_IF_ERROR(CheckLosses());
    return CheckSentEmbedding();
  }

 private:
  // Checks that it leaves gradients as they are, and is of a bucket of its chunk.
  absl::Status CheckMemory(const Instruction& instruction) const {
    const InstructionId id = instruction.id;
    if (instruction.gradient_buffer != kNoBuffer || instruction.num_buckets != 0 ||
        instruction.input_only || instruction.begins_sum) {
      return Refuse(plan_, instruction, "goes backward or has a gradient buffer");
    }
    const bool of_bucket = OperationOf(instruction.kind()).per_bucket;
    if (id.piece() != 0 || id.bucket() >= (of_bucket ? index_.NumBuckets(id.chunk()) : 1)) {
      return Refuse(plan_, instruction, "is not of a bucket of its chunk");
    }
    return absl::OkStatus();
  }

  // Returns the load that a pass through `chunk` needs. A stage loads once, whatever its chunks.
  InstructionId LoadFor(int chunk) const {
    const auto load = std::find_if(
        plan_.instructions.begin(), plan_.instructions.end(),
        [](const Instruction& instruction) { return instruction.kind() == OpKind::kLoadWindows; });
    return load == plan_.instructions.end() ? InstructionId(OpKind::kLoadWindows, chunk) : load->id;
  }

  absl::Status CheckPass(int chunk, int microbatch) const {
    const InstructionId pass(OpKind::kEvaluate, chunk, microbatch);
    if (index_.IsFirst(chunk) || index_.IsLast(chunk) || plan_.every_chunk_reads_batch) {
      RETURN_IF_ERROR(index_.Needs(pass, LoadFor(chunk)));
    }
    for (int bucket = 0; bucket < index_.NumBuckets(chunk); ++bucket) {
      RETURN_IF_ERROR(index_.Needs(pass, InstructionId(OpKind::kGatherForEvaluation, chunk,
                                                       InstructionId::kNoMicrobatch, bucket)));
    }
    if (!index_.IsFirst(chunk)) {
      RETURN_IF_ERROR(
          index_.Needs(pass, InstructionId(OpKind::kReceiveEvaluated, chunk, microbatch)));
    }
    if (!index_.IsLast(chunk)) {
      RETURN_IF_ERROR(index_.Needs(InstructionId(OpKind::kSendEvaluated, chunk, microbatch), pass));
    } else if (plan_.has_tied_ends) {
      RETURN_IF_ERROR(index_.Needs(pass, InstructionId(OpKind::kReceiveHead)));
    }
    return index_.Needs(Losses().front(), pass);
  }

  // Returns the gathers of losses in the order in which they add up, which is that of the norms.
  std::vector<InstructionId> Losses() const {
    std::vector<InstructionId> losses;
    if (plan_.mesh.tensor_size() > 1) losses.emplace_back(OpKind::kGatherTensorLosses);
    losses.emplace_back(OpKind::kGatherDataLosses);
    losses.emplace_back(OpKind::kGatherLosses);
    return losses;
  }

  // Checks that all groups gather losses, in their order.
  absl::Status CheckLosses() const {
    const std::vector<InstructionId> losses = Losses();
    for (size_t i = 1; i < losses.size(); ++i) {
      RETURN_IF_ERROR(index_.Needs(losses[i], losses[i - 1]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSentEmbedding() const {
    if (!plan_.has_tied_ends || !index_.HasFirstChunk()) return absl::OkStatus();
    const int bucket = index_.NumBuckets(0) - 1;
    return index_.Needs(
        InstructionId(OpKind::kSendHead),
        InstructionId(OpKind::kGatherForEvaluation, 0, InstructionId::kNoMicrobatch, bucket));
  }

  const RankIndex& index_;
  const RankPlan& plan_;
};

}  // namespace

absl::Status CheckRankEvaluation(const RankIndex& index) { return EvaluationCheck(index).Check(); }

}  // namespace megascale::plan
