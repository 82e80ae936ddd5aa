#include "runtime/plan/check/rank_step.h"

#include <algorithm>

#include "runtime/base/status.h"
#include "runtime/plan/check/instruction_place.h"
#include "runtime/plan/check/rank_evaluation.h"

namespace megascale::plan {
namespace {

class StepCheck {
 public:
  explicit StepCheck(const RankIndex& index) : index_(index), plan_(index.plan()) {}

  absl::Status Check() const {
    RETURN_IF_ERROR(CheckKinds());
    RETURN_IF_ERROR(CheckPasses());
    RETURN_IF_ERROR(CheckTiedEnds());
    return CheckShard();
  }

 private:
  // Checks each operation apart from the others.
  absl::Status CheckKinds() const {
    for (const Instruction& instruction : plan_.instructions) {
      const InstructionId id = instruction.id;
      const OpKind kind = instruction.kind();
      RETURN_IF_ERROR(CheckPlace(index_, instruction));
      RETURN_IF_ERROR(CheckBuckets(instruction));
      if (instruction.input_only != (index_.splits_backward() && kind == OpKind::kBackward)) {
        return Refuse(plan_, instruction, "gives the gradient of ",
                      instruction.input_only ? "its input alone" : "its weights too",
                      "; exactly a B that has its W apart gives that of its input alone");
      }
      const bool has_buffer = instruction.gradient_buffer != kNoBuffer;
      if ((index_.AddsToGradients(id) || RankIndex::Reduces(kind)) != has_buffer) {
        return Refuse(plan_, instruction, "has gradient buffer ", instruction.gradient_buffer,
                      "; exactly what adds to gradients or reduces them has one");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckBuckets(const Instruction& instruction) const {
    const InstructionId id = instruction.id;
    const bool of_bucket = OperationOf(instruction.kind()).per_bucket;
    const int last = id.bucket() + std::max(1, instruction.num_buckets) - 1;
    if (id.piece() != 0 || last >= (of_bucket ? index_.NumBuckets(id.chunk()) : 1)) {
      return Refuse(plan_, instruction, "is not of a bucket of its chunk");
    }
    if (RankIndex::GoesBack(instruction.kind()) != (instruction.num_buckets > 0)) {
      return Refuse(plan_, instruction, "goes through ", instruction.num_buckets,
                    " buckets; exactly what goes backward goes through some");
    }
    if (!index_.AddsToOneBucket(id) || instruction.num_buckets <= 1) return absl::OkStatus();
    return Refuse(plan_, instruction, "goes through ", instruction.num_buckets,
                  " buckets; where gradients are sharded, a gradient buffer holds those of one");
  }

  // Checks that the pieces of B or W follow each other and go through each bucket once.
  absl::Status CheckPieces(OpKind kind, int chunk, int microbatch) const {
    InstructionId before;
    int next = 0;
    for (int bucket = 0; bucket < index_.NumBuckets(chunk); ++bucket) {
      const InstructionId id(kind, chunk, microbatch, bucket);
      const Instruction* piece = index_.Find(id);
      if (piece == nullptr && bucket < next) continue;
      if (piece == nullptr) return index_.Missing(id);
      if (bucket < next) {
        return Refuse(plan_, *piece, "goes through layers that ", before.ToString(), " does");
      }
      if (bucket > 0) RETURN_IF_ERROR(index_.Needs(id, before));
      if (bucket > 0 && index_.AddsToOneBucket(id) && index_.ComputedBefore(id) != before) {
        return Refuse(plan_, *piece, "does not follow ", before.ToString(),
                      " at once; it takes over what that made of its bucket");
      }
      before = id;
      next = bucket + piece->num_buckets;
    }
    return absl::OkStatus();
  }

  // Returns the load that a forward through `chunk` needs. A stage loads once, whatever its chunks.
  InstructionId LoadFor(int chunk) const {
    const auto load = std::find_if(
        plan_.instructions.begin(), plan_.instructions.end(),
        [](const Instruction& instruction) { return instruction.kind() == OpKind::kLoadBatch; });
    const bool shared = plan_.every_chunk_reads_batch && load != plan_.instructions.end();
    return shared ? load->id : InstructionId(OpKind::kLoadBatch, chunk);
  }

  absl::Status CheckPasses() const {
    for (int chunk = plan_.stage(); chunk < plan_.num_chunks; chunk += plan_.mesh.pipeline_size()) {
      const InstructionId load = LoadFor(chunk);
      for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
        const auto id = [&](OpKind kind) { return InstructionId(kind, chunk, microbatch); };
        const InstructionId forward = id(OpKind::kForward);
        const InstructionId backward = id(OpKind::kBackward);
        RETURN_IF_ERROR(CheckPieces(OpKind::kBackward, chunk, microbatch));
        const InstructionId last =
            index_.PieceOf(OpKind::kBackward, chunk, microbatch, index_.NumBuckets(chunk) - 1);
        RETURN_IF_ERROR(index_.Needs(backward, forward));
        if (index_.IsFirst(chunk) || index_.IsLast(chunk) || plan_.every_chunk_reads_batch) {
          RETURN_IF_ERROR(index_.Needs(forward, load));
        }
        if (!index_.IsFirst(chunk)) {
          RETURN_IF_ERROR(index_.Needs(forward, id(OpKind::kReceiveActivation)));
          RETURN_IF_ERROR(index_.Needs(id(OpKind::kSendGradient), last));
        }
        if (!index_.IsLast(chunk)) {
          RETURN_IF_ERROR(index_.Needs(id(OpKind::kSendActivation), forward));
          RETURN_IF_ERROR(index_.Needs(id(OpKind::kReceiveGradient), forward));
          RETURN_IF_ERROR(index_.Needs(backward, id(OpKind::kReceiveGradient)));
        }
        if (!index_.splits_backward()) continue;
        RETURN_IF_ERROR(CheckPieces(OpKind::kWeightGradient, chunk, microbatch));
        RETURN_IF_ERROR(index_.Needs(id(OpKind::kWeightGradient), last));
      }
    }
    return absl::OkStatus();
  }

  // Checks each bucket of a chunk. Its parameters are gathered before any forward. Its gradients
  // are reduced before the norm: after every backward, or with sharded gradients those of a
  // micro-batch after its own backward; tensor-parallel ranks first sum the replicated ones. The
  // chunk is stepped after the norm, and after the exchange of trust sums if there is one.
  absl::Status CheckShard() const {
    const InstructionId norm(OpKind::kReduceNorm);
    RETURN_IF_ERROR(CheckNorms());
    for (int chunk = plan_.stage(); chunk < plan_.num_chunks; chunk += plan_.mesh.pipeline_size()) {
      const InstructionId step(OpKind::kOptimizerStep, chunk);
      RETURN_IF_ERROR(index_.Needs(step, norm));
      if (index_.has_trust_ratios()) {
        const InstructionId gather(OpKind::kGatherTrustSums, chunk);
        const InstructionId update(OpKind::kOptimizerUpdate, chunk);
        RETURN_IF_ERROR(index_.Needs(step, gather));
        InstructionId first = gather;
        if (plan_.mesh.tensor_size() > 1) {
          first = InstructionId(OpKind::kGatherTensorTrustSums, chunk);
          RETURN_IF_ERROR(index_.Needs(gather, first));
        }
        RETURN_IF_ERROR(index_.Needs(first, update));
        RETURN_IF_ERROR(index_.Needs(update, norm));
      }
      for (int bucket = 0; bucket < index_.NumBuckets(chunk); ++bucket) {
        const InstructionId gather(OpKind::kGatherParameters, chunk, InstructionId::kNoMicrobatch,
                                   bucket);
        for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
          RETURN_IF_ERROR(index_.Needs(InstructionId(OpKind::kForward, chunk, microbatch), gather));
          const InstructionId added = index_.PieceOf(index_.last_part(), chunk, microbatch, bucket);
          RETURN_IF_ERROR(CheckReduced(added, bucket));
        }
      }
    }
    return absl::OkStatus();
  }

  // Returns the gathers of norms in the order in which they add up: of tensor ranks, then of
  // replicas, then of stages. In another order sums would have other bits.
  std::vector<InstructionId> Norms() const {
    std::vector<InstructionId> norms;
    if (plan_.mesh.tensor_size() > 1) norms.emplace_back(OpKind::kGatherTensorNorms);
    norms.emplace_back(OpKind::kGatherDataNorms);
    norms.emplace_back(OpKind::kReduceNorm);
    return norms;
  }

  // Checks that all groups gather norms, in their order.
  absl::Status CheckNorms() const {
    const std::vector<InstructionId> norms = Norms();
    for (size_t i = 0; i < norms.size(); ++i) {
      if (index_.Find(norms[i]) == nullptr) return index_.Missing(norms[i]);
      if (i > 0) RETURN_IF_ERROR(index_.Needs(norms[i], norms[i - 1]));
    }
    return absl::OkStatus();
  }

  // Checks that a piece's gradients of a bucket go through S, if tensor-parallel ranks have copies
  // of some, then through R, and only then into the norm.
  absl::Status CheckReduced(InstructionId piece, int bucket) const {
    const int microbatch =
        plan_.shards_gradients ? piece.microbatch() : InstructionId::kNoMicrobatch;
    const InstructionId reduced(OpKind::kReduceGradients, piece.chunk(), microbatch, bucket);
    InstructionId first = reduced;
    if (plan_.mesh.tensor_size() > 1) {
      first = InstructionId(OpKind::kSumReplicated, piece.chunk(), microbatch, bucket);
      RETURN_IF_ERROR(index_.Needs(reduced, first));
    }
    RETURN_IF_ERROR(index_.Needs(first, piece));
    return index_.Needs(Norms().front(), reduced);
  }

  // With tied ends: checks that the head computes with the embedding matrix of this step, and that
  // all of its gradient is added to the embedding's once.
  absl::Status CheckTiedEnds() const {
    if (!plan_.has_tied_ends) return absl::OkStatus();
    if (index_.HasFirstChunk()) RETURN_IF_ERROR(CheckOwnerOfEmbedding());
    if (!index_.HasLastChunk()) return absl::OkStatus();
    for (int microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
      const InstructionId forward(OpKind::kForward, plan_.num_chunks - 1, microbatch);
      RETURN_IF_ERROR(index_.Needs(forward, InstructionId(OpKind::kReceiveEmbedding)));
      RETURN_IF_ERROR(index_.Needs(InstructionId(OpKind::kSendHeadGradient), forward));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOwnerOfEmbedding() const {
    const int bucket = index_.NumBuckets(0) - 1;
    const InstructionId send(OpKind::kSendEmbedding);
    RETURN_IF_ERROR(index_.Needs(
        send, InstructionId(OpKind::kGatherParameters, 0, InstructionId::kNoMicrobatch, bucket)));
    RETURN_IF_ERROR(index_.Needs(InstructionId(OpKind::kOptimizerStep, 0), send));
    const Instruction* added = nullptr;
    for (const Instruction& instruction : plan_.instructions) {
      if (instruction.kind() != OpKind::kAddHeadGradient) continue;
      if (added != nullptr) return Refuse(plan_, instruction, "adds the gradient a second time");
      added = &instruction;
    }
    if (added == nullptr) return index_.Missing(InstructionId(OpKind::kAddHeadGradient, 0));
    const InstructionId add = added->id;
    if (add.bucket() != bucket) {
      return Refuse(plan_, *added, "is not of bucket ", bucket, ", which has the embedding");
    }
    RETURN_IF_ERROR(index_.Needs(add, InstructionId(OpKind::kReceiveHeadGradient)));
    const OpKind reduces =
        plan_.mesh.tensor_size() > 1 ? OpKind::kSumReplicated : OpKind::kReduceGradients;
    return index_.Needs(InstructionId(reduces, 0, add.microbatch(), bucket), add);
  }

  const RankIndex& index_;
  const RankPlan& plan_;
};

}  // namespace

absl::Status CheckRankStep(const RankIndex& index) {
  return index.plan().evaluates ? CheckRankEvaluation(index) : StepCheck(index).Check();
}

}  // namespace megascale::plan
