#include "runtime/plan/build/evaluation_plan.h"

#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/build/activation_slots.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/build/check_options.h"
#include "runtime/plan/build/draft.h"
#include "runtime/plan/build/transfers.h"

namespace megascale::plan {
namespace {

class EvaluationPasses {
 public:
  explicit EvaluationPasses(Draft* draft) : draft_(*draft), transfers_(draft) {
    draft_.plan().evaluates = true;
    order_ = ComputeOrder(ScheduleOptionsOf(draft_.options()), draft_.stage());
    for (const int chunk : draft_.Chunks()) {
      const int num_slots = NumActivationSlots(draft_.options(), order_, chunk);
      slots_.emplace_back(num_slots);
      draft_.plan().slots.push_back(num_slots);
    }
  }

  void Add() {
    AddLoad();
    AddGathers();
    AddEmbedding();
    for (const ComputeItem& item : order_) {
      if (item.kind == OpKind::kForward) AddPass(item.chunk, item.microbatch);
    }
    AddLosses();
  }

 private:
  bool ReadsBatch(int chunk) const {
    return draft_.IsFirst(chunk) || draft_.IsLast(chunk) ||
           draft_.options().every_chunk_reads_batch;
  }

  void AddLoad() {
    for (const int chunk : draft_.Chunks()) {
      if (!ReadsBatch(chunk)) continue;
      Instruction load = Draft::OfOperation(InstructionId(OpKind::kLoadWindows, chunk));
      load.bytes = draft_.options().batch_bytes;
      load_ = draft_.Add(std::move(load));
      return;
    }
  }

  void AddGathers() {
    for (const int chunk : draft_.Chunks()) {
      for (int bucket = draft_.options().NumBuckets(chunk); bucket-- > 0;) {
        const InstructionId id(OpKind::kGatherForEvaluation, chunk, InstructionId::kNoMicrobatch,
                               bucket);
        const int64_t bytes = draft_.CostOfBucket(chunk, bucket).parameter_bytes;
        gathers_.push_back(draft_.Add(draft_.Collective(id, bytes)));
      }
      last_gathers_.push_back(gathers_.back());
    }
  }

  // With tied ends the head computes with the embedding, which the first stage sends to the last.
  void AddEmbedding() {
    const PlanOptions& options = draft_.options();
    const int num_stages = options.mesh.pipeline_size();
    const bool is_first = draft_.stage() == 0;
    if (!options.has_tied_ends || (!is_first && draft_.stage() != num_stages - 1)) return;
    const InstructionId id(is_first ? OpKind::kSendHead : OpKind::kReceiveHead);
    Instruction transfer = draft_.Collective(id, options.embedding_bytes);
    transfer.peer = OtherStage(id, num_stages);
    // The embedding is in the first chunk's last bucket, which is gathered first.
    if (is_first) transfer.depends_on = {gathers_.front()};
    const int index = draft_.Add(std::move(transfer));
    if (!is_first) received_head_ = index;
  }

  void AddPass(int chunk, int microbatch) {
    const InstructionId id(OpKind::kEvaluate, chunk, microbatch);
    ActivationSlots& slots = slots_[draft_.IndexOf(chunk)];
    ActivationSlot place = slots.Take();
    std::vector<int> inputs = std::exchange(place.last_users, {});
    if (!draft_.IsFirst(chunk)) {
      inputs = {transfers_.AddReceive(OpKind::kReceiveEvaluated, id, place.slot, inputs)};
    }
    if (ReadsBatch(chunk)) inputs.push_back(load_);
    inputs.push_back(last_gathers_[draft_.IndexOf(chunk)]);
    if (draft_.IsLast(chunk) && received_head_ >= 0) inputs.push_back(received_head_);
    Channel channel = ChannelOf(draft_.options().mesh, id.operation());
    const ChunkCost cost = draft_.Cost(chunk);
    Instruction pass = Draft::OfOperation(id);
    pass.bytes = channel.group == GroupKind::kNone ? 0 : cost.forward_bytes;
    pass.flops = cost.forward_flops;
    pass.group = channel.group;
    pass.channel = std::move(channel.name);
    pass.activation_slot = place.slot;
    pass.depends_on = std::move(inputs);
    place.last_users = {draft_.Add(std::move(pass))};
    if (!draft_.IsLast(chunk)) {
      place.last_users = {transfers_.AddSend(OpKind::kSendEvaluated, id, place.slot)};
    }
    slots.Free(std::move(place));
  }

  // Adds the gathers of losses, one after the other.
  void AddLosses() {
    int last = draft_.last_computed();
    for (const OpKind kind :
         {OpKind::kGatherTensorLosses, OpKind::kGatherDataLosses, OpKind::kGatherLosses}) {
      Instruction losses = draft_.Collective(InstructionId(kind), draft_.options().norm_bytes);
      if (losses.group == GroupKind::kNone) continue;
      losses.depends_on = {last};
      last = draft_.Add(std::move(losses));
    }
  }

  Draft& draft_;
  Transfers transfers_;
  std::vector<ComputeItem> order_;      // of a training step
  std::vector<ActivationSlots> slots_;  // by chunk of the rank
  std::vector<int> gathers_;
  std::vector<int> last_gathers_;  // by chunk of the rank
  int load_ = -1;
  int received_head_ = -1;
};

}  // namespace

absl::StatusOr<RankPlan> BuildEvaluationPlan(const PlanOptions& options, int rank) {
  RETURN_IF_ERROR(CheckOptions(options, rank));
  PlanOptions overlapping = options;
  overlapping.overlap = {};
  Draft draft(overlapping, rank);
  EvaluationPasses(&draft).Add();
  return std::move(draft).Take();
}

}  // namespace megascale::plan
