#include "runtime/plan/build/tied_ends.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

constexpr int kFirstChunk = 0;  // owns the embedding

// The embedding comes before the first layer, and so is in the last bucket.
int BucketOfEmbedding(const PlanOptions& options) { return options.NumBuckets(kFirstChunk) - 1; }

}  // namespace

Instruction TiedEnds::Transfer(OpKind kind, int64_t bytes) const {
  Instruction transfer = draft_.Collective(InstructionId(kind), bytes);
  transfer.peer = OtherStage(transfer.id, draft_.options().mesh.pipeline_size());
  return transfer;
}

void TiedEnds::AddEmbedding() {
  const PlanOptions& options = draft_.options();
  if (!is_first_stage() && !is_last_stage()) return;
  const OpKind kind = is_first_stage() ? OpKind::kSendEmbedding : OpKind::kReceiveEmbedding;
  Instruction transfer = Transfer(kind, options.embedding_bytes);
  if (is_first_stage()) {
    const InstructionId gather(OpKind::kGatherParameters, kFirstChunk, InstructionId::kNoMicrobatch,
                               BucketOfEmbedding(options));
    const auto& instructions = draft_.plan().instructions;
    const auto found = std::find_if(instructions.begin(), instructions.end(),
                                    [&](const Instruction& one) { return one.id == gather; });
    MEGASCALE_CHECK(found != instructions.end());
    transfer.depends_on = {static_cast<int>(found - instructions.begin())};
  }
  const int index = draft_.Add(std::move(transfer));
  (is_first_stage() ? sent_embedding_ : received_embedding_) = index;
  if (!options.overlap.p2p_communication) draft_.AwaitBeforeNextPass(index);
}

void TiedEnds::EndForwards() {
  if (!is_last_stage()) return;
  is_delayed_ = !draft_.options().overlap.p2p_communication;
  if (!is_delayed_) AddSendOfGradient();
}

void TiedEnds::AddDelayed() {
  if (is_delayed_) AddSendOfGradient();
}

void TiedEnds::AddSendOfGradient() {
  Instruction send = Transfer(OpKind::kSendHeadGradient, draft_.options().head_gradient_bytes);
  send.depends_on = {draft_.last_computed()};
  draft_.Add(std::move(send));
}

int TiedEnds::AddHeadGradient(int chunk, int microbatch, int bucket, int ready, int buffer) {
  const PlanOptions& options = draft_.options();
  if (!is_first_stage() || chunk != kFirstChunk || bucket != BucketOfEmbedding(options)) {
    return ready;
  }
  const int num_reductions = draft_.plan().shards_gradients ? options.num_microbatches : 1;
  if (++num_reduced_ < num_reductions) return ready;
  Instruction receive = Transfer(OpKind::kReceiveHeadGradient, options.head_gradient_bytes);
  if (!options.overlap.p2p_communication) receive.depends_on = {draft_.last_computed()};
  const int received = draft_.Add(std::move(receive));
  Instruction add =
      Draft::OfOperation(InstructionId(OpKind::kAddHeadGradient, chunk, microbatch, bucket));
  add.gradient_buffer = buffer;
  add.depends_on = {ready, received};
  add.bytes = options.head_gradient_bytes;
  return draft_.Add(std::move(add));
}

}  // namespace megascale::plan
