#include "runtime/plan/build/draft.h"

#include <utility>

#include "runtime/plan/build/channels.h"

namespace megascale::plan {

Draft::Draft(const PlanOptions& options, int rank) : options_(options) {
  plan_.mesh = options.mesh;
  plan_.rank = rank;
  plan_.num_chunks = options.num_chunks();
  plan_.num_microbatches = options.num_microbatches;
  plan_.every_chunk_reads_batch = options.every_chunk_reads_batch;
  plan_.has_tied_ends = options.has_tied_ends;
  plan_.shards_gradients = options.zero_stage == 2;
  stage_ = plan_.stage();
}

std::vector<int> Draft::Chunks() const {
  std::vector<int> chunks;
  for (int chunk = stage_; chunk < plan_.num_chunks; chunk += options_.mesh.pipeline_size()) {
    chunks.push_back(chunk);
  }
  return chunks;
}

ChunkCost Draft::Cost(int chunk) const {
  return options_.chunks.empty() ? ChunkCost{} : options_.chunks[static_cast<size_t>(chunk)];
}

BucketCost Draft::CostOfBucket(int chunk, int bucket) const {
  const ChunkCost cost = Cost(chunk);
  if (!cost.buckets.empty()) return cost.buckets[static_cast<size_t>(bucket)];
  const bool splits = options_.splits_backward();
  return {.flops = splits ? cost.weight_flops : cost.backward_flops,
          .bytes = splits ? cost.weight_bytes : cost.backward_bytes,
          .gradient_bytes = cost.gradient_bytes,
          .parameter_bytes = cost.parameter_bytes,
          .replicated_bytes = cost.replicated_bytes};
}

int Draft::Add(Instruction instruction) {
  const int index = static_cast<int>(plan_.instructions.size());
  if (instruction.stream == StreamKind::kCompute) last_computed_ = index;
  plan_.instructions.push_back(std::move(instruction));
  return index;
}

Instruction Draft::OfOperation(InstructionId id) {
  const Operation& operation = OperationOf(id.operation());
  return {.id = id, .stream = operation.stream, .owner = operation.owner};
}

Instruction Draft::Collective(InstructionId id, int64_t bytes) const {
  Instruction instruction = OfOperation(id);
  Channel channel = ChannelOf(options_.mesh, id.operation());
  instruction.group = channel.group;
  instruction.channel = std::move(channel.name);
  instruction.bytes = bytes;
  return instruction;
}

}  // namespace megascale::plan
