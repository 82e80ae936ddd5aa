// How many products the ranks of a job of 7 billion parameters have, and how large the job's table
// of them is. Every rank receives it at each start. The model's memory is only reserved.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gpu/ops/products/algorithm_table.h"
#include "gpu/ops/products/products.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/engine/chunk_state.h"
#include "runtime/engine/products/product_calls.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/mesh.h"

namespace megascale::engine {
namespace {

// Addresses of a device that nobody may touch.
class UntouchableMemory {
 public:
  UntouchableMemory()
      : begin_(static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_NONE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        next_(begin_) {
    EXPECT_NE(begin_, MAP_FAILED);
  }
  ~UntouchableMemory() { ::munmap(begin_, kBytes); }
  UntouchableMemory(const UntouchableMemory&) = delete;
  UntouchableMemory& operator=(const UntouchableMemory&) = delete;

  void* Take(size_t bytes) {
    constexpr size_t kAlignment = 256;  // as cudaMalloc gives
    std::byte* const taken = next_;
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    EXPECT_LE(next_, begin_ + kBytes);
    return taken;
  }
  void Fill(tensor::Vector* vector) { vector->data = Take(static_cast<size_t>(vector->bytes())); }

 private:
  static constexpr size_t kBytes = size_t{1} << 40;
  std::byte* const begin_;
  std::byte* next_;
};

// Adds the products of a rank to `table`, as RankEngine finds them.
void AddProductsOf(const job::v1::JobSpec& spec, int rank, gpu::AlgorithmTable* table) {
  UntouchableMemory memory;
  const layout::RankLayout part = layout::RankLayoutOf(spec, rank).value();
  plan::PlanOptions plan_options = part.plan_options;
  plan_options.chunks = layout::ChunkCostsOf(spec).value();
  const plan::RankPlan plan = plan::BuildTrainPlan(plan_options, rank).value();
  const tensor::DType accumulation = tensor::AccumulationType(part.compute);
  GradientBuffers buffers;
  for (const int64_t elements : layout::GradientSizesOf(part, plan).buffers) {
    memory.Fill(&buffers.emplace_back(tensor::Vector{nullptr, accumulation, elements}));
  }
  ChunkStates chunks;
  for (const optim::OptimizerShard& shard : part.shards) {
    const model::ChunkLayout layout = shard.layout();
    ChunkState& chunk = chunks.emplace_back();
    chunk.range = shard.range;
    chunk.weights = {nullptr, part.compute, layout.padded_elements(shard.num_shards)};
    memory.Fill(&chunk.weights);
    chunk.in_buffer = part.InGradientBuffers(layout);
  }
  RankWork work = {.plan = &plan,
                   .chunks = {},
                   .add_gradients =
                       [&](const plan::Instruction& instruction, model::TransformerChunk* chunk) {
                         const auto index =
                             static_cast<size_t>(plan.IndexOfChunk(instruction.id.chunk()));
                         const auto gradients = GradientsOf(chunks[index], instruction, buffers);
                         chunk->AddGradientsTo(gradients.elements, gradients.range.begin);
                       },
                   .first_layer_of = [](const plan::Instruction&) { return 0; }};
  for (const plan::Instruction& instruction : plan.instructions) {
    if (instruction.gradient_buffer == plan::kNoBuffer) continue;
    ChunkState& chunk = chunks[static_cast<size_t>(plan.IndexOfChunk(instruction.id.chunk()))];
    if (!chunk.gradients) chunk.gradients = GradientsOf(chunk, instruction, buffers).elements;
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    ChunkWork& chunk = work.chunks.emplace_back();
    chunk.options = part.ModelOptions(chunks[i].range, plan.slots[i]);
    chunk.parameters = chunks[i].Parameters();
    chunk.activation_bytes =
        static_cast<size_t>(model::TransformerChunk::ActivationBytes(chunk.options));
    chunk.activations = memory.Take(chunk.activation_bytes);
  }
  gpu::Products::Options options;
  options.compute = part.compute;
  options.workspace_bytes = gpu::kProductWorkspaceBytesHopper;
  // The longest text that an algorithm may have.
  gpu::Algorithm longest;
  longest.library_version = 130100;
  longest.id = longest.split_k = std::numeric_limits<int32_t>::max();
  longest.tile = longest.stages = longest.custom_option = std::numeric_limits<uint32_t>::max();
  for (const ops::MatMulArgs& call : ProductCallsOf(work).value()) {
    const auto args = gpu::Products::WithFusedEpilogue(call, *table, options).value();
    const gpu::Product product = gpu::Products::ProductOf(options, args).value();
    if (product.k > 0) table->Set(product, longest);
  }
}

job::v1::JobSpec SevenBillion(bool llama, int pipeline, int tensor) {
  job::v1::JobSpec spec = ToyJob(WriteTestText("seven_billion"), 1, pipeline);
  job::v1::ModelSpec* const model = spec.mutable_model();
  model->Clear();
  model->set_vocab_size(32000);
  model->set_hidden_size(4096);
  model->set_num_hidden_layers(32);
  model->set_num_attention_heads(32);
  if (llama) {
    MakeLikeLlama(model);
    model->set_intermediate_size(11008);
  }
  spec.mutable_train()->set_seq_length(4096);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_train()->set_global_batch_size(256);
  spec.mutable_train()->set_precision(job::v1::PRECISION_BF16);
  spec.mutable_parallel()->set_data_parallel_size(8);
  spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
  return job::ResolveJobSpec(spec).value();
}

TEST(ProductTableSize, ATableOf7BillionParametersIsSomeTensOfKilobytes) {
  for (const bool llama : {false, true}) {
    for (const auto& [pipeline, tensor] : {std::pair(1, 1), {4, 1}, {4, 2}}) {
      const job::v1::JobSpec spec = SevenBillion(llama, pipeline, tensor);
      const plan::Mesh mesh = layout::MeshOf(spec).value();
      gpu::AlgorithmTable table;
      std::vector<bool> seen(static_cast<size_t>(pipeline));
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        // The ranks of a stage have equal products.
        const auto stage = static_cast<size_t>(mesh.CoordinateOf(rank).pipeline);
        if (seen[stage]) continue;
        seen[stage] = true;
        AddProductsOf(spec, rank, &table);
      }
      const size_t bytes = table.ToJson().size();
      std::printf("%s, %d stages, %d tensor ranks: %zu products, %zu bytes\n",
                  llama ? "Llama" : "GPT", pipeline, tensor, table.products().size(), bytes);
      EXPECT_GE(table.products().size(), 10u);
      EXPECT_LE(bytes, checkpoint::kProductTableBytesMax / 16);
    }
  }
}

}  // namespace
}  // namespace megascale::engine
