#include "runtime/plan/build/passes.h"

#include <utility>

#include "runtime/plan/build/channels.h"

namespace megascale::plan {

Passes::Passes(Draft* draft, Reductions* reductions, TiedEnds* tied_ends,
               absl::Span<const ComputeItem> order)
    : draft_(*draft),
      reductions_(*reductions),
      tied_ends_(*tied_ends),
      transfers_(draft),
      order_(order) {
  for (const int chunk : draft_.Chunks()) {
    const int num_slots = NumActivationSlots(draft_.options(), order, chunk);
    chunks_.push_back({.free_slots = ActivationSlots(num_slots)});
    chunks_.back().passes.resize(static_cast<size_t>(draft_.options().num_microbatches));
    draft_.plan().slots.push_back(num_slots);
  }
}

void Passes::Add(Inputs inputs) {
  inputs_ = std::move(inputs);
  for (absl::Span<const ComputeItem> rest = order_; !rest.empty();) {
    const size_t size = transfers_.NumTogether(rest);
    AddTogether(rest.first(size));
    rest.remove_prefix(size);
  }
}

void Passes::AddTogether(absl::Span<const ComputeItem> items) {
  transfers_.BeginTogether();
  for (const ComputeItem& item : items) AddReceive(item);
  for (const ComputeItem& item : items) AddItem(item);
}

// Takes a slot for a forward, and adds the receive of the pass's input from another stage, if it
// has one.
void Passes::AddReceive(const ComputeItem& item) {
  const InstructionId id(item.kind, item.chunk, item.microbatch);
  Pass& pass = PassOf(id);
  if (item.kind == OpKind::kForward) {
    ActivationSlot free = ChunkOf(id).free_slots.Take();
    pass.slot = free.slot;
    pass.inputs = std::move(free.last_users);
    if (draft_.IsFirst(item.chunk)) return;
    pass.inputs = {transfers_.AddReceive(OpKind::kReceiveActivation, id, pass.slot, pass.inputs)};
  } else if (item.kind == OpKind::kBackward && !draft_.IsLast(item.chunk)) {
    // A gradient is received after the send: it cannot come earlier anyway, and the slot is then
    // free after B and SG.
    pass.inputs = {transfers_.AddReceive(OpKind::kReceiveGradient, id, pass.slot, {pass.send})};
  }
}

void Passes::AddItem(const ComputeItem& item) {
  const InstructionId id(item.kind, item.chunk, item.microbatch);
  if (item.kind == OpKind::kForward) {
    AddForward(id);
  } else if (item.kind == OpKind::kBackward) {
    AddBackward(id);
  } else {
    AddWeightGradient(id);
  }
  if (item.kind == draft_.LastPart()) EndPass(id);
}

void Passes::AddForward(InstructionId id) {
  const int chunk = id.chunk();
  Pass& pass = PassOf(id);
  std::vector<int> inputs = std::move(pass.inputs);
  if (draft_.IsFirst(chunk) || draft_.IsLast(chunk) || draft_.options().every_chunk_reads_batch) {
    inputs.push_back(inputs_.batch);
  }
  inputs.push_back(inputs_.gathers[draft_.IndexOf(chunk)]);
  if (draft_.IsLast(chunk) && tied_ends_.received_embedding() >= 0) {
    inputs.push_back(tied_ends_.received_embedding());
  }
  const ChunkCost cost = draft_.Cost(chunk);
  Instruction forward =
      PassInstruction(id, std::move(inputs), cost.forward_flops, cost.forward_bytes);
  // The last chunk's forward also makes the gradients of the head.
  if (draft_.IsLast(chunk)) reductions_.UseBuffer(&forward);
  pass.forward = draft_.Add(std::move(forward));
  const bool was_last = ++ChunkOf(id).num_forwards == draft_.options().num_microbatches;
  if (draft_.IsLast(chunk) && was_last) tied_ends_.EndForwards();
  if (draft_.IsLast(chunk)) return;
  pass.send = transfers_.AddSend(OpKind::kSendActivation, id, pass.slot);
}

void Passes::AddBackward(InstructionId id) {
  const int chunk = id.chunk();
  Pass& pass = PassOf(id);
  std::vector<int> inputs = {pass.forward};
  if (!draft_.IsLast(chunk)) inputs.push_back(pass.inputs.front());
  const ChunkCost cost = draft_.Cost(chunk);
  if (draft_.options().splits_backward()) {
    pass.backward = AddBack(id, std::move(inputs), cost.backward_flops - cost.weight_flops,
                            cost.backward_bytes - cost.weight_bytes);
    draft_.plan().instructions[static_cast<size_t>(pass.backward)].input_only = true;
  } else {
    pass.backward = AddLastPart(id, std::move(inputs), cost.backward_flops, cost.backward_bytes);
  }
  pass.last_users = {pass.backward};
  if (draft_.IsFirst(chunk)) return;
  pass.last_users = {transfers_.AddSend(OpKind::kSendGradient, id, pass.slot)};
}

void Passes::AddWeightGradient(InstructionId id) {
  Pass& pass = PassOf(id);
  const ChunkCost cost = draft_.Cost(id.chunk());
  pass.last_users.push_back(AddLastPart(id, {pass.backward}, cost.weight_flops, cost.weight_bytes));
}

// Adds the part of a pass that completes its micro-batch's gradients: as one instruction, or, if
// these are reduced next, in a piece for each bucket. Returns the last one. With stage 2 each
// bucket is reduced right after its piece, so that a later piece finds a free buffer.
int Passes::AddLastPart(InstructionId id, std::vector<int> inputs, int64_t flops, int64_t bytes) {
  Chunk& chunk = ChunkOf(id);
  const bool shards_gradients = draft_.plan().shards_gradients;
  if (!shards_gradients && chunk.num_ended + 1 < draft_.options().num_microbatches) {
    return AddBack(id, std::move(inputs), flops, bytes);
  }
  chunk.pieces.clear();
  for (int bucket = 0; bucket < draft_.options().NumBuckets(id.chunk()); ++bucket) {
    const InstructionId piece(id.operation(), id.chunk(), id.microbatch(), bucket);
    const BucketCost cost = draft_.CostOfBucket(id.chunk(), bucket);
    chunk.pieces.push_back(
        AddBack(piece, std::exchange(inputs, {}), cost.flops, cost.bytes, /*num_buckets=*/1));
    if (!shards_gradients) continue;
    reductions_.AddOfMicrobatch(id.chunk(), id.microbatch(), bucket, chunk.pieces.back());
  }
  return chunk.pieces.back();
}

// `num_buckets` 0: it goes through the layers of all buckets.
int Passes::AddBack(InstructionId id, std::vector<int> inputs, int64_t flops, int64_t bytes,
                    int num_buckets) {
  Instruction back = PassInstruction(id, std::move(inputs), flops, bytes);
  back.num_buckets = num_buckets > 0 ? num_buckets : draft_.options().NumBuckets(id.chunk());
  if (!draft_.plan().shards_gradients || id.operation() == draft_.LastPart()) {
    reductions_.UseBuffer(&back);
  }
  return draft_.Add(std::move(back));
}

Instruction Passes::PassInstruction(InstructionId id, std::vector<int> inputs, int64_t flops,
                                    int64_t bytes) {
  const std::vector<int> awaited = draft_.TakeAwaited();
  inputs.insert(inputs.end(), awaited.begin(), awaited.end());
  Channel channel = ChannelOf(draft_.options().mesh, id.operation());
  Instruction pass = Draft::OfOperation(id);
  // The exchanges of tensor-parallel ranks are part of the pass.
  pass.bytes = channel.group == GroupKind::kNone ? 0 : bytes;
  pass.group = channel.group;
  pass.channel = std::move(channel.name);
  pass.activation_slot = PassOf(id).slot;
  pass.depends_on = std::move(inputs);
  pass.flops = flops;
  return pass;
}

// Frees the slot. After the chunk's last pass, all of its gradients are complete.
void Passes::EndPass(InstructionId id) {
  Pass& pass = PassOf(id);
  Chunk& chunk = ChunkOf(id);
  chunk.free_slots.Free({.slot = pass.slot, .last_users = std::move(pass.last_users)});
  const bool last = ++chunk.num_ended == draft_.options().num_microbatches;
  if (draft_.plan().shards_gradients || !last) return;
  reductions_.AddOfChunk(id.chunk(), std::move(chunk.pieces));
}

}  // namespace megascale::plan
