#include "runtime/plan/step_plan.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::plan {
namespace {

// One that is reduced, and one that passes add to.
constexpr int kSharedBuffersMax = 2;

constexpr char kActivationChannel[] = "activation";
constexpr char kGradientChannel[] = "gradient";
constexpr char kShardChannel[] = "shard";
constexpr char kNormChannel[] = "norm";
constexpr char kPassChannel[] = "pass";
constexpr char kReplicatedChannel[] = "replicated";
constexpr char kTrustChannel[] = "trust";

// The channel of the boundary between stage `lower` and the one after it; the first is after the
// last.
std::string BoundaryChannel(absl::string_view direction, int lower, int num_stages) {
  const bool wraps = lower == num_stages - 1;
  return absl::StrCat(direction, ".", wraps && num_stages % 2 == 1 ? 2 : lower % 2);
}

// How many micro-batches are on their way through `chunk` at once. `last`: the kind that ends a
// pass.
int NumLive(const std::vector<ComputeItem>& order, int chunk, OpKind last) {
  int live = 0;
  int high_water = 0;
  for (const ComputeItem& item : order) {
    if (item.chunk != chunk) continue;
    live += item.kind == OpKind::kForward ? 1 : item.kind == last ? -1 : 0;
    high_water = std::max(high_water, live);
  }
  return high_water;
}

ScheduleOptions ScheduleOf(const PlanOptions& options) {
  return {.schedule = options.schedule,
          .num_stages = options.mesh.pipeline_size(),
          .chunks_per_stage = options.chunks_per_stage,
          .num_microbatches = options.num_microbatches};
}

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
    MakeGradientBuffers();
  }

  RankPlan Build() && {
    const std::vector<ComputeItem> order = ComputeOrder(ScheduleOf(options_), stage_);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const int chunk = stage_ + static_cast<int>(i) * options_.mesh.pipeline_size();
      const int num_live = NumLive(order, chunk, LastPart());
      const int num_slots = std::min(num_live + NumSpare(chunk), options_.num_microbatches);
      for (int slot = 0; slot < num_slots; ++slot) {
        chunks_[i].free_slots.push({.slot = slot, .last_users = {}});
      }
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
  struct Slot {
    int slot = 0;
    std::vector<int> last_users;  // what must have ended before the next micro-batch begins here
  };
  struct GradientBuffer {
    int buffer = kNoBuffer;
    int last_user = -1;  // the reduction before the next turn, or -1
  };
  // A micro-batch on its way through a chunk.
  struct Pass {
    int slot = kNoSlot;
    int forward = 0;
    int backward = 0;
    int send = -1;
    std::vector<int> inputs;      // of the next part: the slot being free, then what was received
    std::vector<int> last_users;  // what must have ended before its slot is free
  };
  struct Chunk {                  // of this stage
    std::vector<Pass> passes;     // by micro-batch
    std::queue<Slot> free_slots;  // longest free first
    int gather = -1;
    int gradient_buffer = kNoBuffer;  // of its turn, or its bucket's, if there is one
    std::vector<int> pieces;          // by bucket: of the pass that is reduced next
    int reduce = -1;                  // the last so far
    int num_ended = 0;                // passes
  };

  // Fewer buffers than buckets that take turns, or stage 2 would save nothing: of two buckets the
  // second waits for the reduction of the first.
  void MakeGradientBuffers() {
    plan_.gradient_buffers = options_.chunks_per_stage;
    if (plan_.shards_gradients) {
      int num_buckets = 0;
      for (int chunk = stage_; chunk < plan_.num_chunks; chunk += options_.mesh.pipeline_size()) {
        num_buckets += NumBuckets(chunk);
      }
      plan_.gradient_buffers = std::clamp(num_buckets - 1, 1, kSharedBuffersMax);
    }
    for (int buffer = 0; buffer < plan_.gradient_buffers; ++buffer) {
      free_buffers_.push({.buffer = buffer, .last_user = -1});
    }
  }

  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }
  // The first chunk receives no activations, so its slots are free when its passes come to them.
  int NumSpare(int chunk) const { return IsFirst(chunk) ? 0 : options_.spare_slots; }

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
  // Of a pass: when it has ended its memory is free.
  OpKind LastPart() const {
    return options_.splits_backward() ? OpKind::kWeightGradient : OpKind::kBackward;
  }

  int Add(Instruction instruction) {
    const int index = static_cast<int>(plan_.instructions.size());
    if (instruction.stream == StreamKind::kCompute) last_computed_ = index;
    plan_.instructions.push_back(std::move(instruction));
    return index;
  }

  // An instruction that moves one micro-batch across the boundary between `lower` and the chunk
  // after it.
  Instruction Transfer(InstructionId id, int lower) {
    const bool activation =
        id.operation() == OpKind::kSendActivation || id.operation() == OpKind::kReceiveActivation;
    const bool at_lower = id.chunk() == lower;
    const StreamKind lower_stream =
        activation ? StreamKind::kSendActivation : StreamKind::kReceiveGradient;
    const StreamKind upper_stream =
        activation ? StreamKind::kReceiveActivation : StreamKind::kSendGradient;
    const int num_stages = options_.mesh.pipeline_size();
    return {.id = id,
            .stream = at_lower ? lower_stream : upper_stream,
            .group = GroupKind::kPipeline,
            .channel = BoundaryChannel(activation ? kActivationChannel : kGradientChannel,
                                       lower % num_stages, num_stages),
            .peer = (at_lower ? lower + 1 : lower) % num_stages,
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

  // In the order in which they are needed.
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

  // How many of the next passes are computed without an exchange in between; see Overlap.
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

  // What the pass needs of another stage, if anything.
  void AddReceive(const ComputeItem& item, int computed_before) {
    const InstructionId id(item.kind, item.chunk, item.microbatch);
    Pass& pass = PassOf(id);
    const bool forward = item.kind == OpKind::kForward;
    if (forward) TakeSlot(id);
    if (forward ? IsFirst(item.chunk) : item.kind != OpKind::kBackward || IsLast(item.chunk)) {
      return;
    }
    Instruction receive = forward ? Transfer(Other(OpKind::kReceiveActivation, id), item.chunk - 1)
                                  : Transfer(Other(OpKind::kReceiveGradient, id), item.chunk);
    // A gradient behind the send, though its answer cannot come earlier: the slot is then free
    // after B and SG.
    receive.depends_on = forward ? std::move(pass.inputs) : std::vector<int>{pass.send};
    if (!options_.overlap.p2p_communication && computed_before >= 0) {
      receive.depends_on.push_back(computed_before);
    }
    pass.inputs = {Add(std::move(receive))};
  }

  void TakeSlot(InstructionId forward) {
    std::queue<Slot>& free_slots = ChunkOf(forward).free_slots;
    MEGASCALE_CHECK(!free_slots.empty());
    Pass& pass = PassOf(forward);
    pass.slot = free_slots.front().slot;
    pass.inputs = std::move(free_slots.front().last_users);
    free_slots.pop();
  }

  // Of the pass that was added last.
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

  // Of the same micro-batch and chunk.
  static InstructionId Other(OpKind kind, InstructionId id) {
    return InstructionId(kind, id.chunk(), id.microbatch());
  }

  void AddForward(InstructionId id) {
    const int chunk = id.chunk();
    Pass& pass = PassOf(id);
    std::vector<int> inputs = std::move(pass.inputs);
    if (IsFirst(chunk) || IsLast(chunk)) inputs.push_back(batch_);
    inputs.push_back(ChunkOf(id).gather);
    // The last chunk's forward pass makes the head's gradients.
    Instruction forward = PassInstruction(id, std::move(inputs), Cost(chunk).forward_flops,
                                          Cost(chunk).forward_bytes);
    if (IsLast(chunk)) UseGradientBuffer(&forward);
    pass.forward = Add(std::move(forward));
    if (IsLast(chunk)) return;
    pass.send = AddSend(Transfer(Other(OpKind::kSendActivation, id), chunk));
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
    pass.last_users = {AddSend(Transfer(Other(OpKind::kSendGradient, id), chunk - 1))};
  }

  void AddWeightGradient(InstructionId id) {
    Pass& pass = PassOf(id);
    pass.last_users.push_back(AddLastPart(id, {pass.backward}, Cost(id.chunk()).weight_flops,
                                          Cost(id.chunk()).weight_bytes));
  }

  // The part of a pass that makes its micro-batch's gradients whole: in one, or, if these are
  // reduced next, in a piece for each bucket. Returns the last. With stage 2 each is reduced behind
  // its piece, so that a later one finds a free buffer.
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

  // Through the layers of all buckets, if it is not said of how many.
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
    if (tensor_parallel_) {
      instruction.group = GroupKind::kTensor;
      instruction.channel = kPassChannel;
      instruction.bytes = bytes;
    }
    return instruction;
  }

  // That of the turn of its chunk or bucket, or the beginning of one.
  void UseGradientBuffer(Instruction* pass) {
    int& buffer = ChunkOf(pass->id).gradient_buffer;
    if (buffer == kNoBuffer) {
      // Where buckets share buffers a schedule has one turn at a time. Pieces of a pass follow each
      // other. A forward begins the turn of the first one's bucket: of several chunks the last
      // one's backward comes next, and of one no other piece does.
      MEGASCALE_CHECK(!free_buffers_.empty());
      const GradientBuffer next = free_buffers_.front();
      free_buffers_.pop();
      buffer = next.buffer;
      if (next.last_user >= 0) pass->depends_on.push_back(next.last_user);
      pass->begins_sum = true;
    }
    pass->gradient_buffer = buffer;
  }

  // Its slot is free; and after the last one, all of the chunk's gradients are whole.
  void EndPass(InstructionId id) {
    Pass& pass = PassOf(id);
    Chunk& chunk = ChunkOf(id);
    chunk.free_slots.push({.slot = pass.slot, .last_users = std::move(pass.last_users)});
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

  // With stage 2 ends the bucket's turn in its gradient buffer.
  void AddReduction(int number, int microbatch, int bucket) {
    Chunk& chunk = chunks_[static_cast<size_t>(plan_.IndexOfChunk(number))];
    const bool begins_sum = !plan_.shards_gradients || chunk.num_ended == 0;
    // All that was added to the bucket is before its piece of the last pass.
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
    free_buffers_.push({.buffer = chunk.gradient_buffer, .last_user = last});
    chunk.gradient_buffer = kNoBuffer;
    if (!options_.overlap.grad_reduce) awaited_.push_back(last);
  }

  Channel ChannelOf(OpKind collective) const {
    switch (collective) {
      case OpKind::kReduceNorm:
        return {GroupKind::kWorld, kNormChannel};
      case OpKind::kSumReplicated:
        return {GroupKind::kTensor, kReplicatedChannel};
      case OpKind::kGatherTrustSums:
        if (tensor_parallel_) return {GroupKind::kStage, kTrustChannel};
        [[fallthrough]];
      default:
        return {GroupKind::kData, kShardChannel};
    }
  }

  Instruction Collective(InstructionId id, int64_t bytes) const {
    Channel channel = ChannelOf(id.operation());
    return {.id = id,
            .stream = StreamKind::kDataParallel,
            .owner = Owner::kShard,
            .group = channel.group,
            .channel = std::move(channel.name),
            .bytes = bytes};
  }

  // Once all gradients are reduced: the norm, and chunk by chunk the step.
  void AddUpdates() {
    Instruction norm = Collective(InstructionId(OpKind::kReduceNorm), options_.norm_bytes);
    for (const Chunk& chunk : chunks_) norm.depends_on.push_back(chunk.reduce);
    const int normed = Add(std::move(norm));
    std::vector<int> ready(chunks_.size(), normed);
    // All updates stand before the first step, so that each exchange has the next update to hide
    // behind.
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
  std::vector<int> sends_;      // of the passes that were added last
  std::vector<int> awaited_;    // by the next pass, though they are no inputs of it
  std::vector<int> unreduced_;  // chunks whose passes have ended, where all are waited for
  std::vector<Chunk> chunks_;   // of this stage, in the model's order
  std::queue<GradientBuffer> free_buffers_;  // longest free first
};

// Of as many chunks as costs are given for, if any.
absl::Status CheckBuckets(const PlanOptions& options) {
  const auto num_chunks = static_cast<size_t>(options.num_chunks());
  if (!options.num_buckets.empty() && options.num_buckets.size() != num_chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("numbers of buckets of ", options.num_buckets.size(),
                     " chunks were given; expected none or ", num_chunks));
  }
  for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int num_buckets = options.NumBuckets(static_cast<int>(chunk));
    if (num_buckets < 1 || num_buckets > InstructionId::kMaxBucket + 1) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " has ", num_buckets,
                                                     " buckets; expected 1 to ",
                                                     InstructionId::kMaxBucket + 1));
    }
    if (options.chunks.empty()) continue;
    const size_t num_costs = options.chunks[chunk].buckets.size();
    if (num_costs == static_cast<size_t>(num_buckets) || (num_costs == 0 && num_buckets == 1)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("costs of ", num_costs, " buckets of chunk ",
                                                   chunk, " were given; expected ", num_buckets));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankPlan> BuildTrainPlan(const PlanOptions& options, int rank) {
  const int64_t num_chunks =
      int64_t{options.mesh.pipeline_size()} * std::max(1, options.chunks_per_stage);
  if (!options.mesh.Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in the mesh of ",
                                                   options.mesh.world_size(), " ranks"));
  }
  if (options.num_microbatches < 1 || options.num_microbatches >= InstructionId::kNoMicrobatch) {
    return absl::InvalidArgumentError(absl::StrCat("num_microbatches is ", options.num_microbatches,
                                                   "; expected 1 to ",
                                                   InstructionId::kNoMicrobatch - 1));
  }
  if (num_chunks >= InstructionId::kNoChunk) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline size times chunks per stage is ",
                                                   num_chunks, "; expected at most ",
                                                   InstructionId::kNoChunk - 1));
  }
  RETURN_IF_ERROR(CheckSchedule(ScheduleOf(options)));
  if (options.spare_slots < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("spare_slots is ", options.spare_slots, "; expected 0 or more"));
  }
  if (options.zero_stage != 1 && options.zero_stage != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage is ", options.zero_stage, "; expected 1 or 2"));
  }
  if (!options.chunks.empty() && static_cast<int>(options.chunks.size()) != num_chunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "costs of ", options.chunks.size(), " chunks were given; expected none or ", num_chunks));
  }
  RETURN_IF_ERROR(CheckBuckets(options));
  return Builder(options, rank).Build();
}

std::vector<Channel> ChannelsOf(const Mesh& mesh, int chunks_per_stage, bool has_trust_ratios) {
  std::vector<Channel> channels = {{GroupKind::kWorld, kNormChannel},
                                   {GroupKind::kData, kShardChannel}};
  const int num_stages = mesh.pipeline_size();
  const int num_boundaries = num_stages - (chunks_per_stage > 1 ? 0 : 1);
  for (const char* direction : {kActivationChannel, kGradientChannel}) {
    for (int lower = 0; lower < num_boundaries; ++lower) {
      const Channel channel = {GroupKind::kPipeline, BoundaryChannel(direction, lower, num_stages)};
      if (std::find(channels.begin(), channels.end(), channel) == channels.end()) {
        channels.push_back(channel);
      }
    }
  }
  if (mesh.tensor_size() == 1) return channels;
  channels.push_back({GroupKind::kTensor, kPassChannel});
  channels.push_back({GroupKind::kTensor, kReplicatedChannel});
  if (has_trust_ratios) channels.push_back({GroupKind::kStage, kTrustChannel});
  return channels;
}

}  // namespace megascale::plan
