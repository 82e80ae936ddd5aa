#include "runtime/plan/step_plan.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::plan {
namespace {

constexpr char kActivationChannel[] = "activation";
constexpr char kGradientChannel[] = "gradient";
constexpr char kShardChannel[] = "shard";
constexpr char kNormChannel[] = "norm";

// The channel of the boundary between stage `lower` and the one after it.
std::string BoundaryChannel(absl::string_view direction, int lower) {
  return absl::StrCat(direction, ".", lower % 2);
}

// How many micro-batches a stage keeps at once.
int NumLive(const std::vector<ComputeItem>& order) {
  int live = 0;
  int high_water = 0;
  for (const ComputeItem& item : order) {
    live += item.forward ? 1 : -1;
    high_water = std::max(high_water, live);
  }
  return high_water;
}

// Adds the instructions of one rank in an order in which they could run one by one.
class Builder {
 public:
  Builder(const PlanOptions& options, int rank) : options_(options) {
    plan_.mesh = options.mesh;
    plan_.rank = rank;
    plan_.num_chunks = options.mesh.pipeline_size();
    plan_.num_microbatches = options.num_microbatches;
    stage_ = plan_.stage();
  }

  RankPlan Build() && {
    const std::vector<ComputeItem> order =
        ComputeOrder({.schedule = options_.schedule,
                      .num_stages = options_.mesh.pipeline_size(),
                      .num_microbatches = options_.num_microbatches},
                     stage_);
    const int num_live = NumLive(order);
    plan_.num_activation_slots =
        num_live + std::min(options_.spare_slots, options_.num_microbatches - num_live);
    for (int slot = 0; slot < plan_.num_activation_slots; ++slot) {
      free_slots_.push({.slot = slot, .last_users = {}});
    }
    passes_.resize(options_.num_microbatches);
    if (IsFirst(stage_) || IsLast(stage_)) {
      batch_ = Add({.id = InstructionId(OpKind::kLoadBatch, stage_),
                    .stream = StreamKind::kLoadBatch,
                    .bytes = options_.batch_bytes});
    }
    for (const ComputeItem& item : order) {
      if (item.forward) {
        AddForward(item);
      } else {
        AddBackward(item);
      }
    }
    AddShard();
    return std::move(plan_);
  }

 private:
  struct Slot {
    int slot = 0;
    std::vector<int> last_users;  // what must have ended before the next micro-batch begins here
  };
  // A micro-batch on its way through a chunk.
  struct Pass {
    int slot = kNoSlot;
    int forward = 0;
    int send = -1;
  };

  bool IsFirst(int chunk) const { return chunk == 0; }
  bool IsLast(int chunk) const { return chunk == plan_.num_chunks - 1; }

  ChunkCost Cost(int chunk) const {
    return options_.chunks.empty() ? ChunkCost{} : options_.chunks[chunk];
  }

  int Add(Instruction instruction) {
    plan_.instructions.push_back(std::move(instruction));
    return static_cast<int>(plan_.instructions.size()) - 1;
  }

  // An instruction that moves one micro-batch across the boundary between `lower` and the chunk
  // after it.
  Instruction Transfer(InstructionId id, int lower) const {
    const bool activation =
        id.operation() == OpKind::kSendActivation || id.operation() == OpKind::kReceiveActivation;
    const bool at_lower = id.chunk() == lower;
    const StreamKind lower_stream =
        activation ? StreamKind::kSendActivation : StreamKind::kReceiveGradient;
    const StreamKind upper_stream =
        activation ? StreamKind::kReceiveActivation : StreamKind::kSendGradient;
    return {.id = id,
            .stream = at_lower ? lower_stream : upper_stream,
            .group = GroupKind::kPipeline,
            .channel = BoundaryChannel(activation ? kActivationChannel : kGradientChannel, lower),
            .peer = at_lower ? lower + 1 : lower,
            .activation_slot = passes_[id.microbatch()].slot,
            .bytes = Cost(lower).output_bytes};
  }

  void AddForward(const ComputeItem& item) {
    const auto [chunk, microbatch] = std::pair(item.chunk, item.microbatch);
    MEGASCALE_CHECK(!free_slots_.empty());
    Slot slot = std::move(free_slots_.front());
    free_slots_.pop();
    Pass& pass = passes_[microbatch];
    pass.slot = slot.slot;
    std::vector<int> inputs = std::move(slot.last_users);
    if (!IsFirst(chunk)) {
      Instruction receive =
          Transfer(InstructionId(OpKind::kReceiveActivation, chunk, microbatch), chunk - 1);
      receive.depends_on = std::move(inputs);
      inputs = {Add(std::move(receive))};
    }
    if (IsFirst(chunk) || IsLast(chunk)) inputs.push_back(batch_);
    pass.forward = Add({.id = InstructionId(OpKind::kForward, chunk, microbatch),
                        .stream = StreamKind::kCompute,
                        .activation_slot = pass.slot,
                        .depends_on = std::move(inputs),
                        .flops = Cost(chunk).forward_flops});
    if (IsLast(chunk)) return;
    Instruction send = Transfer(InstructionId(OpKind::kSendActivation, chunk, microbatch), chunk);
    send.depends_on = {pass.forward};
    pass.send = Add(std::move(send));
  }

  void AddBackward(const ComputeItem& item) {
    const auto [chunk, microbatch] = std::pair(item.chunk, item.microbatch);
    const Pass& pass = passes_[microbatch];
    std::vector<int> inputs = {pass.forward};
    if (!IsLast(chunk)) {
      // Behind the send, though its answer cannot come earlier: the slot is then free after B and
      // SG.
      Instruction receive =
          Transfer(InstructionId(OpKind::kReceiveGradient, chunk, microbatch), chunk);
      receive.depends_on = {pass.send};
      inputs.push_back(Add(std::move(receive)));
    }
    const int backward = Add({.id = InstructionId(OpKind::kBackward, chunk, microbatch),
                              .stream = StreamKind::kCompute,
                              .activation_slot = pass.slot,
                              .depends_on = std::move(inputs),
                              .flops = Cost(chunk).backward_flops});
    last_backward_ = backward;
    Slot freed{.slot = pass.slot, .last_users = {backward}};
    if (!IsFirst(chunk)) {
      Instruction send =
          Transfer(InstructionId(OpKind::kSendGradient, chunk, microbatch), chunk - 1);
      send.depends_on = {backward};
      freed.last_users = {Add(std::move(send))};
    }
    free_slots_.push(std::move(freed));
  }

  Instruction Collective(OpKind kind, GroupKind group, int64_t bytes) const {
    const bool world = group == GroupKind::kWorld;
    return {.id = world ? InstructionId(kind) : InstructionId(kind, stage_),
            .stream = StreamKind::kDataParallel,
            .owner = Owner::kShard,
            .group = group,
            .channel = world ? kNormChannel : kShardChannel,
            .bytes = bytes};
  }

  void AddShard() {
    const ChunkCost cost = Cost(stage_);
    Instruction reduce =
        Collective(OpKind::kReduceGradients, GroupKind::kData, cost.gradient_bytes);
    reduce.depends_on = {last_backward_};
    Instruction norm = Collective(OpKind::kReduceNorm, GroupKind::kWorld, options_.norm_bytes);
    norm.depends_on = {Add(std::move(reduce))};
    const int optimizer = Add({.id = InstructionId(OpKind::kOptimizerStep, stage_),
                               .stream = StreamKind::kOptimizer,
                               .owner = Owner::kShard,
                               .depends_on = {Add(std::move(norm))}});
    Instruction gather =
        Collective(OpKind::kGatherParameters, GroupKind::kData, cost.parameter_bytes);
    gather.depends_on = {optimizer};
    Add(std::move(gather));
  }

  const PlanOptions& options_;
  RankPlan plan_;
  int stage_ = 0;
  int batch_ = -1;
  int last_backward_ = -1;
  std::queue<Slot> free_slots_;  // longest free first
  std::vector<Pass> passes_;     // by micro-batch
};

}  // namespace

absl::StatusOr<RankPlan> BuildTrainPlan(const PlanOptions& options, int rank) {
  const int num_chunks = options.mesh.pipeline_size();
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
    return absl::InvalidArgumentError(absl::StrCat(
        "pipeline size is ", num_chunks, "; expected at most ", InstructionId::kNoChunk - 1));
  }
  if (options.spare_slots < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("spare_slots is ", options.spare_slots, "; expected 0 or more"));
  }
  if (!options.chunks.empty() && static_cast<int>(options.chunks.size()) != num_chunks) {
    return absl::InvalidArgumentError(absl::StrCat("costs of ", options.chunks.size(),
                                                   " chunks were given; expected none or ",
                                                   num_chunks, ", one for each pipeline stage"));
  }
  return Builder(options, rank).Build();
}

std::vector<Channel> ChannelsOf(const Mesh& mesh) {
  std::vector<Channel> channels = {{GroupKind::kWorld, kNormChannel},
                                   {GroupKind::kData, kShardChannel}};
  for (const char* direction : {kActivationChannel, kGradientChannel}) {
    for (int lower = 0; lower < std::min(2, mesh.pipeline_size() - 1); ++lower) {
      channels.push_back({GroupKind::kPipeline, BoundaryChannel(direction, lower)});
    }
  }
  return channels;
}

std::vector<StreamKind> StreamsOf(const RankPlan& plan) {
  std::vector<StreamKind> streams;
  for (int i = 0; i < kNumStreamKinds; ++i) {
    const auto kind = static_cast<StreamKind>(i);
    if (std::any_of(plan.instructions.begin(), plan.instructions.end(),
                    [&](const Instruction& instruction) { return instruction.stream == kind; })) {
      streams.push_back(kind);
    }
  }
  return streams;
}

std::string ToString(const RankPlan& plan) {
  const Coordinate at = plan.mesh.CoordinateOf(plan.rank);
  std::string text =
      absl::StrCat("rank ", plan.rank, " (data ", at.data, ", pipeline ", at.pipeline, ", tensor ",
                   at.tensor, "): ", plan.instructions.size(), " instructions, ",
                   plan.num_activation_slots, " activation slots\n");
  for (const StreamKind kind : StreamsOf(plan)) {
    absl::StrAppend(&text, "  ", Name(kind), std::string(19 - Name(kind).size(), ' '));
    for (const Instruction& instruction : plan.instructions) {
      if (instruction.stream != kind) continue;
      absl::StrAppend(&text, " ", instruction.id.ToString());
    }
    text += '\n';
  }
  return text;
}

}  // namespace megascale::plan
