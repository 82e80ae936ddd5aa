#include "runtime/layout/rank_memory.h"

#include <algorithm>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/pass_operations.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::layout {
namespace {

// Program, protocol buffers, actor system, heap, and the used part of stacks. A worker of a toy
// model has 37 MiB.
constexpr int64_t kProcessBytes = 56 << 20;
// A computing thread's stack, kernels and libraries' work buffers.
constexpr int64_t kBytesPerThread = 4 << 20;

// NCCL's buffers for one communicator: those of each of its channels, for each neighbour of the
// ring, 4 MiB and about as much for short messages. 16 channels are usual within a machine.
constexpr int64_t kNcclBytes = int64_t{128} << 20;

// A rank makes the communicators of all channels of its groups, but for groups of its own.
int NumNcclCommunicators(const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh) {
  if (spec.device() != megascale::job::v1::DEVICE_CUDA || spec.device_sharing()) return 0;
  const std::vector<plan::Channel> channels = ChannelsOf(spec, mesh);
  return static_cast<int>(std::count_if(
      channels.begin(), channels.end(),
      [&mesh](const plan::Channel& channel) { return mesh.GroupSize(channel.group) > 1; }));
}

// Returns the bytes that kernels of ops keep in addition to their operands. All layers make the
// same calls, so one layer of each chunk is enough.
absl::StatusOr<int64_t> KernelBytes(const RankLayout& mine, int num_threads) {
  if (mine.compute == tensor::DType::kF64) return 0;  // the reference: plain loops
  int64_t bytes = 0;
  for (const optim::OptimizerShard& shard : mine.shards) {
    model::ChunkRange range = shard.range;
    range.num_layers = 1;
    ASSIGN_OR_RETURN(const model::ChunkPasses passes,
                     RecordChunk(mine.ModelOptions(range, /*num_slots=*/1), {0}));
    bytes = std::max(bytes, ops::CpuKernelBytes(passes.kernels, num_threads));
  }
  return bytes;
}

}  // namespace

RankMemory& RankMemory::operator+=(const RankMemory& other) {
  weights += other.weights;
  gradients += other.gradients;
  optimizer += other.optimizer;
  activations += other.activations;
  logits += other.logits;
  scratch += other.scratch;
  workspaces += other.workspaces;
  exchanges += other.exchanges;
  communicators += other.communicators;
  pinned += other.pinned;
  process += other.process;
  num_slots += other.num_slots;
  return *this;
}

absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const RankLayout mine, RankLayoutOf(spec, rank));
  ASSIGN_OR_RETURN(const plan::RankPlan plan, plan::BuildTrainPlan(mine.plan_options, rank));
  const int64_t tokens = static_cast<int64_t>(job::NumMicrobatches(spec)) *
                         spec.train().micro_batch_size() * (spec.train().seq_length() + 1);
  RankMemory memory;
  for (size_t i = 0; i < mine.shards.size(); ++i) {
    const optim::OptimizerShard& shard = mine.shards[i];
    const model::ChunkLayout layout = shard.layout();
    const int64_t padded = layout.padded_elements(shard.num_shards);
    const int64_t trust_sums =
        int64_t{shard.num_parts()} * optim::NumTrustSums(spec.optimizer(), layout);
    const auto activation_bytes = [&](int num_slots) {
      return model::TransformerChunk::ActivationBytes(mine.ModelOptions(shard.range, num_slots));
    };
    const int64_t scratch = activation_bytes(0);
    memory.weights += padded * static_cast<int64_t>(tensor::SizeOf(mine.compute));
    memory.optimizer += optim::ShardedOptimizer::StateBytes(shard, mine.compute) +
                        trust_sums * static_cast<int64_t>(sizeof(double));
    memory.activations += activation_bytes(plan.slots[i]) - scratch;
    memory.scratch += scratch;
    memory.num_slots += plan.slots[i];
    if (!shard.range.has_head) continue;
    memory.logits = static_cast<int64_t>(tensor::Arena::BytesFor(
        mine.compute, mine.micro_batch * mine.seq *
                          model::VocabularyRows(mine.config.vocab_size, mine.tensor.size)));
  }
  if (mine.borrows_embedding()) {
    memory.weights +=
        static_cast<int64_t>(tensor::Arena::BytesFor(mine.compute, mine.exchanged_embedding));
  }
  memory.gradients = GradientBytes(GradientSizesOf(mine, plan), AccumulationType(mine.compute));
  const int64_t numbers_of_token = mine.within_documents ? 2 : 1;  // its id, its document's begin
  memory.scratch +=
      numbers_of_token * tokens * static_cast<int64_t>(sizeof(int32_t)) - memory.logits;
  ASSIGN_OR_RETURN(memory.workspaces, KernelBytes(mine, spec.parallel().threads_per_rank()));
  memory.exchanges = kNcclBytes * NumNcclCommunicators(spec, mine.mesh);
  memory.process = kProcessBytes + kBytesPerThread * spec.parallel().threads_per_rank();
  return memory;
}

}  // namespace megascale::layout
