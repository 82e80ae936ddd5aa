#include "runtime/plan/build/reductions.h"

#include <utility>

namespace megascale::plan {

Reductions::Reductions(Draft* draft, TiedEnds* tied_ends)
    : draft_(*draft),
      tied_ends_(*tied_ends),
      free_buffers_(NumGradientBuffers(draft->options(), draft->stage())) {
  draft_.plan().gradient_buffers = NumGradientBuffers(draft->options(), draft->stage());
  for (const int chunk : draft_.Chunks()) {
    chunks_.emplace_back().has_sum.resize(static_cast<size_t>(draft_.options().NumBuckets(chunk)));
  }
}

void Reductions::UseBuffer(Instruction* pass) {
  int& buffer = chunks_[draft_.IndexOf(pass->id.chunk())].buffer;
  if (buffer == kNoBuffer) {
    // With shared buffers a schedule has one turn at a time. Pieces of a pass follow each other. A
    // forward begins the turn of the first piece's bucket: with several chunks the last chunk's
    // backward comes next, and with one chunk no other piece comes in between.
    const GradientBuffer next = free_buffers_.Take();
    buffer = next.buffer;
    if (next.last_user >= 0) pass->depends_on.push_back(next.last_user);
    pass->begins_sum = true;
  }
  pass->gradient_buffer = buffer;
}

void Reductions::AddOfMicrobatch(int chunk, int microbatch, int bucket, int piece) {
  AddReduction(chunk, microbatch, bucket, piece);
  Chunk& mine = chunks_[draft_.IndexOf(chunk)];
  free_buffers_.Free({.buffer = mine.buffer, .last_user = mine.last});
  mine.buffer = kNoBuffer;
  if (!draft_.options().overlap.grad_reduce) draft_.AwaitBeforeNextPass(mine.last);
}

void Reductions::AddOfChunk(int chunk, std::vector<int> pieces) {
  if (draft_.options().overlap.grad_reduce) {
    AddReductions(chunk, pieces);
    return;
  }
  chunks_[draft_.IndexOf(chunk)].pieces = std::move(pieces);
  delayed_.push_back(chunk);
}

void Reductions::AddDelayed() {
  for (const int chunk : delayed_) AddReductions(chunk, chunks_[draft_.IndexOf(chunk)].pieces);
}

void Reductions::AddReductions(int chunk, const std::vector<int>& pieces) {
  for (size_t bucket = 0; bucket < pieces.size(); ++bucket) {
    AddReduction(chunk, InstructionId::kNoMicrobatch, static_cast<int>(bucket), pieces[bucket]);
  }
}

void Reductions::AddReduction(int number, int microbatch, int bucket, int piece) {
  Chunk& chunk = chunks_[draft_.IndexOf(number)];
  // Everything that was added to the bucket comes before its piece of the last pass.
  int last = draft_.options().overlap.grad_reduce ? piece : draft_.last_computed();
  last = tied_ends_.AddHeadGradient(number, microbatch, bucket, last, chunk.buffer);
  const auto add = [&](OpKind kind, int64_t bytes) {
    Instruction instruction =
        draft_.Collective(InstructionId(kind, number, microbatch, bucket), bytes);
    instruction.gradient_buffer = chunk.buffer;
    instruction.depends_on = {last};
    if (kind == OpKind::kReduceGradients) {
      instruction.begins_sum = !chunk.has_sum[static_cast<size_t>(bucket)];
      chunk.has_sum[static_cast<size_t>(bucket)] = true;
    }
    last = draft_.Add(std::move(instruction));
  };
  const BucketCost cost = draft_.CostOfBucket(number, bucket);
  if (draft_.options().mesh.tensor_size() > 1) add(OpKind::kSumReplicated, cost.replicated_bytes);
  add(OpKind::kReduceGradients, cost.gradient_bytes);
  chunk.last = last;
}

}  // namespace megascale::plan
