#include "runtime/plan/build/step_plan.h"

#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/build/check_options.h"
#include "runtime/plan/build/draft.h"
#include "runtime/plan/build/passes.h"
#include "runtime/plan/build/reductions.h"
#include "runtime/plan/build/tied_ends.h"

namespace megascale::plan {
namespace {

// Adds the load, for the first and the last chunk of the model, or for all, after `inputs`. Returns
// its index; -1: this rank loads nothing.
int AddLoad(Draft* draft, const std::vector<int>& inputs) {
  std::vector<int> readers = {0, draft->plan().num_chunks - 1};
  if (draft->options().every_chunk_reads_batch) readers.push_back(draft->Chunks().front());
  for (const int chunk : readers) {
    if (chunk % draft->options().mesh.pipeline_size() != draft->stage()) continue;
    Instruction load = Draft::OfOperation(InstructionId(OpKind::kLoadBatch, chunk));
    load.depends_on = inputs;
    load.bytes = draft->options().batch_bytes;
    return draft->Add(std::move(load));
  }
  return -1;
}

// Adds the gathers, in the order in which passes need them. Returns the last one of each chunk.
std::vector<int> AddGathers(Draft* draft) {
  std::vector<int> last;
  for (const int chunk : draft->Chunks()) {
    last.push_back(-1);
    for (int bucket = draft->options().NumBuckets(chunk); bucket-- > 0;) {
      const InstructionId id(OpKind::kGatherParameters, chunk, InstructionId::kNoMicrobatch,
                             bucket);
      last.back() =
          draft->Add(draft->Collective(id, draft->CostOfBucket(chunk, bucket).parameter_bytes));
    }
  }
  return last;
}

Passes::Inputs AddInputs(Draft* draft) {
  Passes::Inputs inputs;
  if (draft->options().overlap.param_gather) {
    inputs.batch = AddLoad(draft, {});
    inputs.gathers = AddGathers(draft);
    return inputs;
  }
  inputs.gathers = AddGathers(draft);
  const int last = inputs.gathers.back();
  for (int& gather : inputs.gathers) gather = last;
  inputs.batch = AddLoad(draft, {last});
  return inputs;
}

int AddOptimizer(Draft* draft, OpKind kind, int chunk, int ready) {
  Instruction instruction = Draft::OfOperation(InstructionId(kind, chunk));
  instruction.depends_on = {ready};
  return draft->Add(std::move(instruction));
}

// Adds the gathers of norms, one after the other, the first of them after `reduced`. Returns the
// last one.
int AddNorms(Draft* draft, std::vector<int> reduced) {
  std::vector<int> before = std::move(reduced);
  for (const OpKind kind :
       {OpKind::kGatherTensorNorms, OpKind::kGatherDataNorms, OpKind::kReduceNorm}) {
    Instruction norm = draft->Collective(InstructionId(kind), draft->options().norm_bytes);
    if (norm.group == GroupKind::kNone) continue;
    norm.depends_on = before;
    before = {draft->Add(std::move(norm))};
  }
  return before.back();
}

// Adds the gathers of a chunk's trust sums, one after the other. Returns the last one.
int AddTrustSums(Draft* draft, int chunk, int update) {
  const int64_t bytes = draft->Cost(chunk).trust_bytes;
  int last = update;
  const auto add = [&](OpKind kind, int64_t gathered) {
    Instruction gather = draft->Collective(InstructionId(kind, chunk), gathered);
    if (gather.group == GroupKind::kNone) return;
    gather.depends_on = {last};
    last = draft->Add(std::move(gather));
  };
  add(OpKind::kGatherTensorTrustSums, bytes / draft->options().mesh.data_size());
  add(OpKind::kGatherTrustSums, bytes);
  return last;
}

// Adds, after all reductions, the exchange of norms, and chunk by chunk the optimizer's step.
void AddUpdates(Draft* draft, const Reductions& reductions, const TiedEnds& tied_ends) {
  const std::vector<int> chunks = draft->Chunks();
  std::vector<int> reduced;
  reduced.reserve(chunks.size() + 1);
  for (const int chunk : chunks) reduced.push_back(reductions.LastOf(chunk));
  // A step of the optimizer changes the matrix that this sends.
  if (tied_ends.sent_embedding() >= 0) reduced.push_back(tied_ends.sent_embedding());
  const int normed = AddNorms(draft, std::move(reduced));
  std::vector<int> ready(chunks.size(), normed);
  // All updates come before the first step, so that each exchange overlaps with the next update.
  for (size_t i = 0; draft->options().has_trust_ratios && i < chunks.size(); ++i) {
    const int update = AddOptimizer(draft, OpKind::kOptimizerUpdate, chunks[i], normed);
    ready[i] = AddTrustSums(draft, chunks[i], update);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    AddOptimizer(draft, OpKind::kOptimizerStep, chunks[i], ready[i]);
  }
}

}  // namespace

absl::StatusOr<RankPlan> BuildTrainPlan(const PlanOptions& options, int rank) {
  RETURN_IF_ERROR(CheckOptions(options, rank));
  Draft draft(options, rank);
  TiedEnds tied_ends(&draft);
  Reductions reductions(&draft, &tied_ends);
  const std::vector<ComputeItem> order = ComputeOrder(ScheduleOptionsOf(options), draft.stage());
  Passes passes(&draft, &reductions, &tied_ends, order);
  Passes::Inputs inputs = AddInputs(&draft);
  tied_ends.AddEmbedding();
  passes.Add(std::move(inputs));
  tied_ends.AddDelayed();
  reductions.AddDelayed();
  AddUpdates(&draft, reductions, tied_ends);
  return std::move(draft).Take();
}

}  // namespace megascale::plan
