#include "runtime/engine/rank_memory.h"

#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/chunks_of_rank.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
#include "runtime/optim/sharded_optimizer.h"
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

// The products of a linear layer [out, in]: forward, and backward for its input and its weight.
void AddProducts(int64_t tokens, int64_t out, int64_t in, tensor::DType dtype,
                 std::vector<ops::MatMulArgs>* products) {
  const auto matrix = [](tensor::DType type, int64_t rows, int64_t cols) {
    return tensor::Matrix{nullptr, type, rows, cols, cols};
  };
  const tensor::Matrix x = matrix(dtype, tokens, in);
  const tensor::Matrix y = matrix(dtype, tokens, out);
  const tensor::Matrix weight = matrix(dtype, out, in);
  products->push_back(
      {.a = x, .b = weight, .c = y, .transpose_b = ops::Transpose::kYes, .bias = {}});
  products->push_back({.a = y, .b = weight, .c = x, .bias = {}});
  products->push_back({.a = y,
                       .b = x,
                       .c = matrix(AccumulationType(dtype), out, in),
                       .transpose_a = ops::Transpose::kYes,
                       .accumulate = true,
                       .bias = {}});
}

// What the kernels of ops keep beside the operands that they are given. `has_head`: of the rank.
int64_t KernelBytes(const ChunksOfRank& mine, bool has_head, int num_threads) {
  if (mine.compute == tensor::DType::kF64) return 0;  // plain loops
  const model::ModelConfig config = model::PartOfTensorRank(mine.config, mine.tensor.size);
  const int64_t tokens = mine.micro_batch * mine.seq;
  const int64_t attention = config.num_heads * config.head_dim;
  const int64_t hidden = config.hidden_size;
  ops::KernelShapes shapes;
  const auto add = [&](int64_t out, int64_t in) {
    AddProducts(tokens, out, in, mine.compute, &shapes.products);
  };
  add(config.qkv_size(), hidden);
  add(hidden, attention);
  add(config.up_size(), hidden);
  add(hidden, config.intermediate_size);
  if (has_head) {
    add(config.vocab_size, hidden);
    shapes.logits_cols = config.vocab_size;
  }
  shapes.attention.batch = mine.micro_batch;
  shapes.attention.seq = mine.seq;
  shapes.attention.heads = config.num_heads;
  shapes.attention.kv_heads = config.num_kv_heads;
  shapes.attention.head_dim = config.head_dim;
  shapes.attention.window = config.window;
  shapes.attention.q = {nullptr, mine.compute, tokens, attention, config.qkv_size()};
  return ops::CpuKernelBytes(shapes, num_threads);
}

}  // namespace

absl::StatusOr<RankMemory> MemoryOf(const megascale::job::v1::JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const ChunksOfRank mine, ChunksOf(spec, rank));
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
        mine.compute, mine.micro_batch * mine.seq * mine.config.vocab_size / mine.tensor.size));
  }
  memory.gradients = GradientBytes(GradientSizesOf(mine, plan), AccumulationType(mine.compute));
  memory.scratch += tokens * static_cast<int64_t>(sizeof(int32_t)) - memory.logits;
  memory.kernels = KernelBytes(mine, memory.logits > 0, spec.parallel().threads_per_rank());
  memory.process = kProcessBytes + kBytesPerThread * spec.parallel().threads_per_rank();
  return memory;
}

}  // namespace megascale::engine
