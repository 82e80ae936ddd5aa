#include "runtime/plan/build/step_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/status.h"
#include "runtime/plan/build/activation_slots.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/build/check_options.h"
#include "runtime/plan/build/gradient_buffers.h"

namespace megascale::plan {
namespace {

// Adds the instructions of one rank in an order in which they could run one by one.
class Builder {
 public:
  Builder(const PlanOptions& options, int rank) : options_(options) {
    plan_.mesh = options.mesh;
    plan_.rank = rank;
    plan_.num_chunks = options.num_chunks();
    plan_.num_microbatches = options.num_microbatches;
    plan_.shards_gradients = options.zero_stage == 2;
    tensor_parallel_ = options.mesh.tensor_size() > 1;
    stage_ = plan_.stage();
    chunks_.resize(static_cast<size_t>(options.chunks_per_stage));
    plan_.gradient_buffers = NumGradientBuffers(options, stage_);
    free_buffers_ = GradientBuffers(plan_.gradient_buffers);
  }

  RankPlan Build() && {
    const std::vector<ComputeItem> order = ComputeOrder(ScheduleOptionsOf(options_), stage_);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const int chunk = stage_ + static_cast<int>(i) * options_.mesh.pipeline_size();
      const int num_slots = NumActivationSlots(options_, order, chunk);
      chunks_[i].free_slots = ActivationSlots(num_slots);
      chunks_[i].passes.resize(static_cast<size_t>(options_.num_microbatches));
      plan_.slots.push_back(num_slots);
    }
    if (options_.overlap.param_gather) {
      AddLoad({});
      AddGathers();
    } else {
      AddGathers();
      const int last = chunks_.back().gather;
      for (Chunk& chunk : chunks_) chunk.gather = last;
      AddLoad({last});
    }
    for (absl::Span<const ComputeItem> rest = order; !rest.empty();) {
      const size_t size = NumTogether(rest);
      AddTogether(rest.first(size));
      rest.remove_prefix(size);
    }
    for (const int chunk : unreduced_) AddReductions(chunk);
    AddUpdates();
    return std::move(plan_);
  }

 private:
  // A micro-batch on its way through a chunk.
  struct Pass {
    int slot = kNoSlot;
    int forward = 0;
    int backward = 0;
    int send = -1;
    std::vector<int> inputs;      // of the next part: the wait for a free slot, then the receive
    std::vector<int> last_users;  // must have ended before its slot is free
  };
  struct Chunk {               // of this stage
    std::vector<Pass> passes;  // by micro-batch
    ActivationSlots free_slots;
    int gather = -1;
    int gradient_buffer = kNoBuffer;  // of the current turn of the chunk or its bucket, if any
    std::vector<int> pieces;          // by bucket: its piece of the pass that is reduced next
    int reduce = -1;                  // the last one so far
    int num_ended = 0;                // passes
  };

  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }

  ChunkCost Cost(int chunk) const {
    return options_.chunks.empty() ? ChunkCost{} : options_.chunks[chunk];
  }
  int NumBuckets(int chunk) const { return options_.NumBuckets(chunk); }
  BucketCost CostOfBucket(int chunk, int bucket) const {
    const ChunkCost cost = Cost(chunk);
    if (!cost.buckets.empty()) return cost.buckets[static_cast<size_t>(bucket)];
    const bool splits = options_.splits_backward();
    return {.flops = splits ? cost.weight_flops : cost.backward_flops,
            .bytes = splits ? cost.weight_bytes : cost.backward_bytes,
            .gradient_bytes = cost.gradient_bytes,
            .parameter_bytes = cost.parameter_bytes,
            .replicated_bytes = cost.replicated_bytes};
  }

  Chunk& ChunkOf(InstructionId id) {
    return chunks_[static_cast<size_t>(plan_.IndexOfChunk(id.chunk()))];
  }
  Pass& PassOf(InstructionId id) {
    return ChunkOf(id).passes[static_cast<size_t>(id.microbatch())];
  }
  // The kind of instruction that ends a pass and frees its memory.
  OpKind LastPart() const {
    return options_.splits_backward() ? OpKind::kWeightGradient : OpKind::kBackward;
  }

  int Add(Instruction instruction) {
    const int index = static_cast<int>(plan_.instructions.size());
    if (instruction.stream == StreamKind::kCompute) last_computed_ = index;
    plan_.instructions.push_back(std::move(instruction));
    return index;
  }

  // Returns the instruction at one end of a micro-batch's way to a neighbouring chunk.
  Instruction Transfer(OpKind kind, InstructionId pass) {
    const Operation& operation = OperationOf(kind);
    const InstructionId id(kind, pass.chunk(), pass.microbatch());
    const int other = id.chunk() + operation.other_chunk;
    const int lower = std::min(id.chunk(), other);
    const int num_stages = options_.mesh.pipeline_size();
    return {.id = id,
            .stream = operation.stream,
            .owner = operation.owner,
            .group = operation.meeting.group,
            .channel = BoundaryChannel(kind, lower % num_stages, num_stages),
            .peer = other % num_stages,
            .activation_slot = PassOf(id).slot,
            .bytes = Cost(lower).output_bytes};
  }

  void AddLoad(const std::vector<int>& inputs) {
    for (const int chunk : {0, plan_.num_chunks - 1}) {
      if (chunk % options_.mesh.pipeline_size() != stage_ || batch_ >= 0) continue;
      batch_ = Add({.id = InstructionId(OpKind::kLoadBatch, chunk),
                    .stream = StreamKind::kLoadBatch,
                    .depends_on = inputs,
                    .bytes = options_.batch_bytes});
    }
  }

  // Adds the gathers, in the order in which passes need them.
  void AddGathers() {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const int chunk = stage_ + static_cast<int>(i) * options_.mesh.pipeline_size();
      for (int bucket = NumBuckets(chunk); bucket-- > 0;) {
        const InstructionId id(OpKind::kGatherParameters, chunk, InstructionId::kNoMicrobatch,
                               bucket);
        chunks_[i].gather = Add(Collective(id, CostOfBucket(chunk, bucket).parameter_bytes));
      }
    }
  }

  // Returns how many of the next passes run without an exchange in between; see Overlap.
  size_t NumTogether(absl::Span<const ComputeItem> next) const {
    const bool pairs = !options_.overlap.p2p_communication && options_.chunks_per_stage > 1 &&
                       next.size() > 1 && next[0].kind == OpKind::kForward &&
                       next[1].kind == OpKind::kBackward;
    return pairs ? 2 : 1;
  }

  void AddTogether(absl::Span<const ComputeItem> items) {
    if (!options_.overlap.p2p_communication) {
      awaited_.insert(awaited_.end(), sends_.begin(), sends_.end());
    }
    sends_.clear();
    const int computed_before = last_computed_;
    for (const ComputeItem& item : items) AddReceive(item, computed_before);
    for (const ComputeItem& item : items) AddItem(item);
  }

  // Adds the receive of the pass's input from another stage, if it has one.
  void AddReceive(const ComputeItem& item, int computed_before) {
    const InstructionId id(item.kind, item.chunk, item.microbatch);
    Pass& pass = PassOf(id);
    const bool forward = item.kind == OpKind::kForward;
    if (forward) TakeSlot(id);
    if (forward ? IsFirst(item.chunk) : item.kind != OpKind::kBackward || IsLast(item.chunk)) {
      return;
    }
    Instruction receive =
        Transfer(forward ? OpKind::kReceiveActivation : OpKind::kReceiveGradient, id);
    // A gradient is received after the send: it cannot come earlier anyway, and the slot is then
    // free after B and SG.
    receive.depends_on = forward ? std::move(pass.inputs) : std::vector<int>{pass.send};
    if (!options_.overlap.p2p_communication && computed_before >= 0) {
      receive.depends_on.push_back(computed_before);
    }
    pass.inputs = {Add(std::move(receive))};
  }

  void TakeSlot(InstructionId forward) {
    ActivationSlot free = ChunkOf(forward).free_slots.Take();
    Pass& pass = PassOf(forward);
    pass.slot = free.slot;
    pass.inputs = std::move(free.last_users);
  }

  // Adds the send of the result of the last pass.
  int AddSend(Instruction send) {
    send.depends_on = {last_computed_};
    sends_.push_back(Add(std::move(send)));
    return sends_.back();
  }

  void AddItem(const ComputeItem& item) {
    const InstructionId id(item.kind, item.chunk, item.microbatch);
    if (item.kind == OpKind::kForward) {
      AddForward(id);
    } else if (item.kind == OpKind::kBackward) {
      AddBackward(id);
    } else {
      AddWeightGradient(id);
    }
    if (item.kind == LastPart()) EndPass(id);
  }

  void AddForward(InstructionId id) {
    const int chunk = id.chunk();
    Pass& pass = PassOf(id);
    std::vector<int> inputs = std::move(pass.inputs);
    if (IsFirst(chunk) || IsLast(chunk)) inputs.push_back(batch_);
    inputs.push_back(ChunkOf(id).gather);
    // The last chunk's forward also makes the gradients of the head.
    Instruction forward = PassInstruction(id, std::move(inputs), Cost(chunk).forward_flops,
                                          Cost(chunk).forward_bytes);
    if (IsLast(chunk)) UseGradientBuffer(&forward);
    pass.forward = Add(std::move(forward));
    if (IsLast(chunk)) return;
    pass.send = AddSend(Transfer(OpKind::kSendActivation, id));
  }

  void AddBackward(InstructionId id) {
    const int chunk = id.chunk();
    Pass& pass = PassOf(id);
    std::vector<int> inputs = {pass.forward};
    if (!IsLast(chunk)) inputs.push_back(pass.inputs.front());
    const ChunkCost cost = Cost(chunk);
    if (options_.splits_backward()) {
      pass.backward = AddBack(id, std::move(inputs), cost.backward_flops - cost.weight_flops,
                              cost.backward_bytes - cost.weight_bytes);
      plan_.instructions[static_cast<size_t>(pass.backward)].input_only = true;
    } else {
      pass.backward = AddLastPart(id, std::move(inputs), cost.backward_flops, cost.backward_bytes);
    }
    pass.last_users = {pass.backward};
    if (IsFirst(chunk)) return;
    pass.last_users = {AddSend(Transfer(OpKind::kSendGradient, id))};
  }

  void AddWeightGradient(InstructionId id) {
    Pass& pass = PassOf(id);
    pass.last_users.push_back(AddLastPart(id, {pass.backward}, Cost(id.chunk()).weight_flops,
                                          Cost(id.chunk()).weight_bytes));
  }

  // Adds the part of a pass that completes its micro-batch's gradients: as one instruction, or, if
  // these are reduced next, in a piece for each bucket. Returns the last one. With stage 2 each
  // bucket is reduced right after its piece, so that a later piece finds a free buffer.
  int AddLastPart(InstructionId id, std::vector<int> inputs, int64_t flops, int64_t bytes) {
    Chunk& chunk = ChunkOf(id);
    if (!plan_.shards_gradients && chunk.num_ended + 1 < options_.num_microbatches) {
      return AddBack(id, std::move(inputs), flops, bytes);
    }
    chunk.pieces.clear();
    for (int bucket = 0; bucket < NumBuckets(id.chunk()); ++bucket) {
      const InstructionId piece(id.operation(), id.chunk(), id.microbatch(), bucket);
      const BucketCost cost = CostOfBucket(id.chunk(), bucket);
      chunk.pieces.push_back(
          AddBack(piece, std::exchange(inputs, {}), cost.flops, cost.bytes, /*num_buckets=*/1));
      if (plan_.shards_gradients) AddReduction(id.chunk(), id.microbatch(), bucket);
    }
    return chunk.pieces.back();
  }

  // `num_buckets` 0: it goes through the layers of all buckets.
  int AddBack(InstructionId id, std::vector<int> inputs, int64_t flops, int64_t bytes,
              int num_buckets = 0) {
    Instruction back = PassInstruction(id, std::move(inputs), flops, bytes);
    back.num_buckets = num_buckets > 0 ? num_buckets : NumBuckets(id.chunk());
    if (!plan_.shards_gradients || id.operation() == LastPart()) UseGradientBuffer(&back);
    return Add(std::move(back));
  }

  Instruction PassInstruction(InstructionId id, std::vector<int> inputs, int64_t flops,
                              int64_t bytes) {
    inputs.insert(inputs.end(), awaited_.begin(), awaited_.end());
    awaited_.clear();
    Instruction instruction = {.id = id,
                               .stream = StreamKind::kCompute,
                               .activation_slot = PassOf(id).slot,
                               .depends_on = std::move(inputs),
                               .flops = flops};
    Channel channel = ChannelOf(options_.mesh, id.operation());
    if (channel.group != GroupKind::kNone) {
      instruction.group = channel.group;
      instruction.channel = std::move(channel.name);
      instruction.bytes = bytes;
    }
    return instruction;
  }

  // Sets the buffer of the current turn of its chunk or bucket; begins a turn if there is none.
  void UseGradientBuffer(Instruction* pass) {
    int& buffer = ChunkOf(pass->id).gradient_buffer;
    if (buffer == kNoBuffer) {
      // With shared buffers a schedule has one turn at a time. Pieces of a pass follow each other.
      // A forward begins the turn of the first piece's bucket: with several chunks the last chunk's
      // backward comes next, and with one chunk no other piece comes in between.
      const GradientBuffer next = free_buffers_.Take();
      buffer = next.buffer;
      if (next.last_user >= 0) pass->depends_on.push_back(next.last_user);
      pass->begins_sum = true;
    }
    pass->gradient_buffer = buffer;
  }

  // Frees the slot. After the chunk's last pass, all of its gradients are complete.
  void EndPass(InstructionId id) {
    Pass& pass = PassOf(id);
    Chunk& chunk = ChunkOf(id);
    chunk.free_slots.Free({.slot = pass.slot, .last_users = std::move(pass.last_users)});
    const bool last = ++chunk.num_ended == options_.num_microbatches;
    if (plan_.shards_gradients || !last) return;
    if (options_.overlap.grad_reduce) {
      AddReductions(id.chunk());
    } else {
      unreduced_.push_back(id.chunk());
    }
  }

  void AddReductions(int chunk) {
    for (int bucket = 0; bucket < NumBuckets(chunk); ++bucket) {
      AddReduction(chunk, InstructionId::kNoMicrobatch, bucket);
    }
  }

  // Adds S and R of a bucket. With stage 2 this ends the bucket's turn in its gradient buffer.
  void AddReduction(int number, int microbatch, int bucket) {
    Chunk& chunk = chunks_[static_cast<size_t>(plan_.IndexOfChunk(number))];
    const bool begins_sum = !plan_.shards_gradients || chunk.num_ended == 0;
    // Everything that was added to the bucket comes before its piece of the last pass.
    int last =
        options_.overlap.grad_reduce ? chunk.pieces[static_cast<size_t>(bucket)] : last_computed_;
    const auto add = [&](OpKind kind, int64_t bytes) {
      Instruction instruction = Collective(InstructionId(kind, number, microbatch, bucket), bytes);
      instruction.gradient_buffer = chunk.gradient_buffer;
      instruction.begins_sum = kind == OpKind::kReduceGradients && begins_sum;
      instruction.depends_on = {last};
      last = Add(std::move(instruction));
    };
    const BucketCost cost = CostOfBucket(number, bucket);
    if (tensor_parallel_) add(OpKind::kSumReplicated, cost.replicated_bytes);
    add(OpKind::kReduceGradients, cost.gradient_bytes);
    chunk.reduce = last;
    if (!plan_.shards_gradients) return;
    free_buffers_.Free({.buffer = chunk.gradient_buffer, .last_user = last});
    chunk.gradient_buffer = kNoBuffer;
    if (!options_.overlap.grad_reduce) awaited_.push_back(last);
  }

  Instruction Collective(InstructionId id, int64_t bytes) const {
    Channel channel = ChannelOf(options_.mesh, id.operation());
    return {.id = id,
            .stream = OperationOf(id.operation()).stream,
            .owner = OperationOf(id.operation()).owner,
            .group = channel.group,
            .channel = std::move(channel.name),
            .bytes = bytes};
  }

  // Adds, after all reductions, the exchange of norms, and chunk by chunk the optimizer's step.
  void AddUpdates() {
    Instruction norm = Collective(InstructionId(OpKind::kReduceNorm), options_.norm_bytes);
    for (const Chunk& chunk : chunks_) norm.depends_on.push_back(chunk.reduce);
    const int normed = Add(std::move(norm));
    std::vector<int> ready(chunks_.size(), normed);
    // All updates come before the first step, so that each exchange overlaps with the next update.
    for (size_t i = 0; options_.has_trust_ratios && i < chunks_.size(); ++i) {
      const int chunk = stage_ + static_cast<int>(i) * options_.mesh.pipeline_size();
      const int update = Add(OfOptimizer(InstructionId(OpKind::kOptimizerUpdate, chunk), normed));
      Instruction gather =
          Collective(InstructionId(OpKind::kGatherTrustSums, chunk), Cost(chunk).trust_bytes);
      gather.depends_on = {update};
      ready[i] = Add(std::move(gather));
    }
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const int chunk = stage_ + static_cast<int>(i) * options_.mesh.pipeline_size();
      Add(OfOptimizer(InstructionId(OpKind::kOptimizerStep, chunk), ready[i]));
    }
  }

  static Instruction OfOptimizer(InstructionId id, int ready) {
    return {
        .id = id, .stream = StreamKind::kOptimizer, .owner = Owner::kShard, .depends_on = {ready}};
  }

  const PlanOptions& options_;
  RankPlan plan_;
  bool tensor_parallel_ = false;
  int stage_ = 0;
  int batch_ = -1;
  int last_computed_ = -1;
  std::vector<int> sends_;      // sends of the passes that were added last
  std::vector<int> awaited_;    // the next pass waits for these, though they are not its inputs
  std::vector<int> unreduced_;  // chunks whose passes have ended, if reductions wait for all passes
  std::vector<Chunk> chunks_;   // of this stage, in the model's order
  GradientBuffers free_buffers_{0};
};

}  // namespace

absl::StatusOr<RankPlan> BuildTrainPlan(const PlanOptions& options, int rank) {
  RETURN_IF_ERROR(CheckOptions(options, rank));
  return Builder(options, rank).Build();
}

}  // namespace megascale::plan
