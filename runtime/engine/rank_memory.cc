#include "runtime/engine/rank_memory.h"

#include "runtime/base/status.h"
#include "runtime/engine/chunk_of_rank.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_adamw.h"
#include "runtime/plan/step_plan.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {
namespace {

// Program, protocol buffers, actor system and heap; stacks as far as they are used. A worker of a
// toy model has 37 MiB.
constexpr int64_t kProcessBytes = 56 << 20;
// A computing thread's stack, kernels and libraries' work buffers.
constexpr int64_t kBytesPerThread = 4 << 20;

}  // namespace

absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const ChunkOfRank mine, ChunkOf(spec, rank));
  ASSIGN_OR_RETURN(const plan::RankPlan plan, plan::BuildTrainPlan(mine.plan_options, rank));
  const model::ChunkLayout layout(mine.config, mine.range);
  const int64_t padded = layout.padded_elements(mine.shard.num_shards);
  const int64_t scratch = model::TransformerChunk::ActivationBytes(mine.ModelOptions(0));
  const int64_t all =
      model::TransformerChunk::ActivationBytes(mine.ModelOptions(plan.num_activation_slots));
  const int64_t tokens = static_cast<int64_t>(job::NumMicrobatches(spec)) *
                         spec.train().micro_batch_size() * (spec.train().seq_length() + 1);
  RankMemory memory;
  memory.weights = padded * static_cast<int64_t>(tensor::SizeOf(mine.compute));
  memory.gradients = padded * static_cast<int64_t>(tensor::SizeOf(AccumulationType(mine.compute)));
  memory.optimizer = optim::ShardedAdamW::StateBytes(mine.shard, mine.compute);
  memory.activations = all - scratch;
  memory.num_slots = plan.num_activation_slots;
  if (mine.range.has_head) {
    memory.logits = static_cast<int64_t>(tensor::Arena::BytesFor(
        mine.compute, mine.micro_batch * mine.seq * mine.config.vocab_size));
  }
  memory.scratch = scratch - memory.logits + tokens * static_cast<int64_t>(sizeof(int32_t));
  memory.process = kProcessBytes + kBytesPerThread * spec.parallel().threads_per_rank();
  return memory;
}

}  // namespace megascale::engine
