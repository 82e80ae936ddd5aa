#include "runtime/engine/rank_memory.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "runtime/base/status.h"
#include "runtime/engine/chunk_of_rank.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
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
// Attention's backward keeps, of one head, keys and values twice and their gradients, in fp32,
// padded to whole vectors.
constexpr int64_t kAttentionCopies = 6;
constexpr int64_t kPadding = 64;

int64_t Padded(int64_t size) { return (size + kPadding - 1) / kPadding * kPadding; }

// What the kernels of ops keep beside the operands that they are given; see cpu_matmul.cc: fp32
// products a copy of the second operand in oneDNN's layout; bf16 ones one of each operand of a
// weight's gradient, or, where the processor does not multiply bf16, of all operands in fp32.
int64_t KernelBytes(const ChunkOfRank& mine, int num_threads) {
  const model::ModelConfig& config = mine.config;
  const int64_t tokens = mine.micro_batch * mine.seq;
  const int64_t attention = config.num_heads * config.head_dim;
  const int64_t hidden = config.hidden_size;
  const int64_t inner = std::max({hidden, attention, config.intermediate_size});
  int64_t outer = std::max({hidden, config.qkv_size(), config.up_size()});
  if (mine.range.has_head) outer = std::max(outer, config.vocab_size);
  const int64_t input = tokens * inner;
  const int64_t output = tokens * outer;
  const int64_t second = std::max(input, std::max(outer, config.intermediate_size) * inner);
  const int64_t of_attention = int64_t{sizeof(float)} * num_threads * kAttentionCopies *
                               Padded(mine.seq) * Padded(config.head_dim);
  if (mine.compute == tensor::DType::kF64) return 0;  // plain loops
  if (mine.compute == tensor::DType::kF32) {
    return of_attention + int64_t{sizeof(float)} * second;
  }
  const absl::string_view instructions = ops::InstructionSet();
  if (instructions == "avx512_bf16" || instructions == "amx_bf16") {
    return of_attention + int64_t{sizeof(tensor::BFloat16)} * (output + input);
  }
  return of_attention + int64_t{sizeof(float)} * 2 * (output + second);
}

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
  memory.kernels = KernelBytes(mine, spec.parallel().threads_per_rank());
  memory.process = kProcessBytes + kBytesPerThread * spec.parallel().threads_per_rank();
  return memory;
}

}  // namespace megascale::engine
