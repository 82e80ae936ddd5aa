#include "runtime/layout/rank_memory.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/device/host_window.h"
#include "runtime/device/staged_communicator.h"
#include "runtime/device/staged_copy.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/cuda_memory.h"
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

// The numbers of a step, in pinned memory: a page, which is the least that can be pinned.
constexpr int64_t kPinnedNumbersBytes = 4096;

// How the ranks of a job compute and exchange.
struct DeviceKind {
  bool has_memory = false;        // of its own, so that copies go through pinned memory
  bool exchanges_on_host = true;  // otherwise NCCL does
};

DeviceKind KindOf(const megascale::job::v1::JobSpec& spec) {
  return {.has_memory = spec.device() == megascale::job::v1::DEVICE_CUDA,
          .exchanges_on_host = !job::ExchangesThroughNccl(spec)};
}

// Returns how many staged communicators a rank makes: those that its instructions use. Those of one
// rank alone need no memory.
int64_t NumStagedCommunicators(const plan::RankPlan& plan) {
  std::set<std::pair<plan::GroupKind, std::string>> used;
  for (const plan::Instruction& instruction : plan.instructions) {
    if (instruction.group == plan::GroupKind::kNone) continue;
    if (plan.mesh.GroupSize(instruction.group) == 1) continue;
    used.emplace(instruction.group, instruction.channel);
  }
  return static_cast<int64_t>(used.size());
}

// A rank makes the NCCL communicators of all channels of its groups, but for groups of its own.
int64_t NumNcclCommunicators(const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh) {
  const std::vector<plan::Channel> channels = ChannelsOf(spec, mesh);
  return std::count_if(channels.begin(), channels.end(), [&mesh](const plan::Channel& channel) {
    return mesh.GroupSize(channel.group) > 1;
  });
}

// Returns the size of a step's batch; 0: the rank reads none.
int64_t BatchBytes(const megascale::job::v1::JobSpec& spec, const RankLayout& mine) {
  const bool reads = mine.within_documents ||
                     std::any_of(mine.shards.begin(), mine.shards.end(), [](const auto& shard) {
                       return shard.range.has_embedding || shard.range.has_head;
                     });
  if (!reads) return 0;
  const int64_t samples =
      static_cast<int64_t>(job::NumMicrobatches(spec)) * spec.train().micro_batch_size();
  const int64_t begins = mine.within_documents ? mine.seq : 0;
  return samples * (mine.seq + 1 + begins) * static_cast<int64_t>(sizeof(int32_t));
}

// Returns the most pinned memory that a rank has at a time: while it loads its state, through a
// window, it has all the rest.
int64_t PinnedBytes(const DeviceKind& kind, const plan::RankPlan& plan, int64_t batch_bytes) {
  if (!kind.has_memory) return 0;
  const int64_t staged = kind.exchanges_on_host ? NumStagedCommunicators(plan) : 0;
  return batch_bytes + kPinnedNumbersBytes +
         static_cast<int64_t>(device::HostWindow::kPinnedBytes) +
         static_cast<int64_t>(device::StagedCopy::kPinnedBytes) +
         staged * 2 * static_cast<int64_t>(device::kStagingBytes);
}

// Returns the workspaces of a GPU's kernels: those of two streams, of which one makes the products
// and runs the passes. A kernel asks at most for five numbers of each row of logits, one of each
// head and token (backward of attention), one of each element of a head and position (rotary), or
// the partial sums of a norm.
int64_t CudaWorkspaceBytes(const RankLayout& mine) {
  const int64_t tokens = mine.micro_batch * mine.seq;
  const int64_t floats =
      std::max({5 * tokens, tokens * mine.config.num_heads / mine.tensor.size,
                mine.seq * mine.config.head_dim, 2 * kCudaNormBlocksMax * mine.config.hidden_size});
  const int64_t most = floats * static_cast<int64_t>(sizeof(float));
  // Each workspace that came before has at most half of the next one's size.
  const int64_t further = most > kCudaKernelBytes ? 4 * most - kCudaKernelBytes : 0;
  return kCudaProductBytes + 2 * kCudaKernelBytes + further;
}

// Returns how many operators the passes of a micro-batch through a chunk have.
absl::StatusOr<int64_t> NumOperators(const RankLayout& mine, const model::ChunkRange& range) {
  ASSIGN_OR_RETURN(const model::ChunkPasses passes,
                   RecordChunk(mine.ModelOptions(range, /*num_slots=*/1), {0}));
  int64_t count = 0;
  for (const model::PassOperations* pass : {&passes.forward, &passes.backward, &passes.weights}) {
    count += std::count_if(pass->begin(), pass->end(), [](const model::PassOperation& operation) {
      return !model::IsExchange(operation.kind);
    });
  }
  return count;
}

// Returns what a rank's CUDA graphs take. A graph is found by the addresses in it, so each slot of
// a chunk has graphs of its own; the first micro-batch of a step has others, since it begins the
// sums of gradients.
absl::StatusOr<int64_t> CudaGraphBytes(const RankLayout& mine, const plan::RankPlan& plan) {
  int64_t launches = 0;
  for (size_t i = 0; i < mine.shards.size(); ++i) {
    model::ChunkRange range = mine.shards[i].range;
    const int64_t num_layers = range.num_layers;
    range.num_layers = 1;
    ASSIGN_OR_RETURN(const int64_t with_one, NumOperators(mine, range));
    int64_t operators = with_one;
    if (num_layers > 1) {
      range.num_layers = 2;
      ASSIGN_OR_RETURN(const int64_t with_two, NumOperators(mine, range));
      operators += (num_layers - 1) * (with_two - with_one);
    }
    launches += kCudaLaunchesPerOperator * operators * (plan.slots[i] + 1);
  }
  return std::min(launches, kCudaGraphsMax * kCudaGraphLaunchesMax) * kCudaGraphLaunchBytes;
}

// Returns the bytes that the processors' kernels keep in addition to their operands. All layers
// make the same calls, except for the window, on which these bytes do not depend; so one layer of
// each chunk is enough.
absl::StatusOr<int64_t> CpuWorkspaceBytes(const RankLayout& mine, int num_threads) {
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
  communicators += other.communicators;
  pinned += other.pinned;
  context += other.context;
  graphs += other.graphs;
  device_communicators += other.device_communicators;
  process += other.process;
  num_slots += other.num_slots;
  return *this;
}

absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const RankLayout mine, RankLayoutOf(spec, rank));
  ASSIGN_OR_RETURN(const plan::RankPlan plan, plan::BuildTrainPlan(mine.plan_options, rank));
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
  const int64_t batch_bytes = BatchBytes(spec, mine);
  memory.scratch += batch_bytes - memory.logits;
  const DeviceKind kind = KindOf(spec);
  memory.pinned = PinnedBytes(kind, plan, batch_bytes);
  if (kind.has_memory) {
    memory.workspaces = CudaWorkspaceBytes(mine);
    memory.context = kCudaContextBytes;
    if (job::UsesCudaGraphs(spec)) {
      ASSIGN_OR_RETURN(memory.graphs, CudaGraphBytes(mine, plan));
    }
    if (!kind.exchanges_on_host) {
      memory.device_communicators = NumNcclCommunicators(spec, mine.mesh) * kNcclCommunicatorBytes;
    }
  } else {
    ASSIGN_OR_RETURN(memory.workspaces,
                     CpuWorkspaceBytes(mine, spec.parallel().threads_per_rank()));
  }
  memory.process = kProcessBytes + kBytesPerThread * spec.parallel().threads_per_rank();
  return memory;
}

}  // namespace megascale::layout
