#include "runtime/layout/rank_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/plan/plan_options.h"

namespace megascale::layout {
namespace {

constexpr auto k1F1B = job::v1::PIPELINE_SCHEDULE_1F1B;
constexpr auto kZeroBubble = job::v1::PIPELINE_SCHEDULE_ZB_H1;

// Counts the bytes of exchanges; the other rank has the same numbers as this one.
class CountingGroup final : public model::TensorGroup {
 public:
  model::TensorPlace place() const override { return {.size = 2, .index = 0}; }
  Exchange Broadcast(int, const tensor::Vector& in, const tensor::Vector& out) override {
    std::memcpy(out.data, in.data, Bytes(in));
    return Count(in);
  }
  Exchange Reduce(int to, const tensor::Vector& in, const tensor::Vector& out) override {
    if (to == 0) std::memcpy(out.data, in.data, Bytes(in));
    return Count(in);
  }
  void Wait(Exchange) override {}
  absl::Status status() const override { return absl::OkStatus(); }

  // Returns the bytes since the last call.
  int64_t Take() { return std::exchange(bytes_, 0); }

 private:
  Exchange Count(const tensor::Vector& vector) {
    bytes_ += static_cast<int64_t>(Bytes(vector));
    return 1;
  }
  static size_t Bytes(const tensor::Vector& vector) {
    return static_cast<size_t>(vector.size) * tensor::SizeOf(vector.dtype);
  }

  int64_t bytes_ = 0;
};

struct Case {
  bool parallel_block = false;
  int num_norms = 2;
  job::v1::PipelineSchedule schedule = k1F1B;
  job::v1::RecomputeGranularity recompute = job::v1::RECOMPUTE_GRANULARITY_NONE;
};

job::v1::JobSpec SpecOf(const Case& given) {
  job::v1::JobSpec spec = engine::ToyJob(engine::WriteTestText("text"), 1, 2);
  spec.mutable_parallel()->set_tensor_model_parallel_size(2);
  spec.mutable_parallel()->set_pipeline_schedule(given.schedule);
  spec.mutable_model()->set_parallel_block(given.parallel_block);
  spec.mutable_model()->set_num_ln_in_parallel_attn(given.num_norms);
  spec.mutable_train()->set_recompute_granularity(given.recompute);
  return job::ResolveJobSpec(spec).value();
}

// Compares with the counts that plans carry and the simulator prices.
TEST(ChunkCosts, SayWhatTensorRanksReallyExchange) {
  for (const Case& given :
       {Case{}, Case{.parallel_block = true}, Case{.parallel_block = true, .num_norms = 1},
        Case{.schedule = kZeroBubble}, Case{.parallel_block = true, .schedule = kZeroBubble},
        Case{.parallel_block = true, .num_norms = 1, .schedule = kZeroBubble},
        Case{.recompute = job::v1::RECOMPUTE_GRANULARITY_SELECTIVE},
        Case{.recompute = job::v1::RECOMPUTE_GRANULARITY_FULL},
        Case{.parallel_block = true, .recompute = job::v1::RECOMPUTE_GRANULARITY_FULL},
        Case{.parallel_block = true,
        .num_norms = 1,
        .recompute = job::v1::RECOMPUTE_GRANULARITY_FULL}}) {
    const job::v1::JobSpec spec = SpecOf(given);
    const std::vector<plan::ChunkCost> costs = ChunkCostsOf(spec).value();
    for (int stage = 0; stage < 2; ++stage) {
      SCOPED_TRACE(absl::StrCat("parallel block ", given.parallel_block, ", norms ",
                                given.num_norms, ", schedule ", given.schedule, ", recompute ",
                                given.recompute, ", stage ", stage));
      const RankLayout part = RankLayoutOf(spec, 2 * stage).value();
      const optim::OptimizerShard& shard = part.shards[0];
      const int64_t size = shard.layout().num_elements();
      std::vector<float> weights(static_cast<size_t>(size), 0.01f);
      std::vector<float> gradients(static_cast<size_t>(size));
      const auto ops = ops::MakeCpuOps(tensor::DType::kF32, 1);
      CountingGroup group;
      const auto chunk =
          model::TransformerChunk::Create(part.ModelOptions(shard.range, 1), ops.get(),
                                          {{weights.data(), tensor::DType::kF32, size},
                                           {gradients.data(), tensor::DType::kF32, size}},
                                          &group)
              .value();
      double loss = 0;
      chunk->Forward(0, {.gradient_scale = 1, .sum = {&loss, tensor::DType::kF64, 1}});
      const auto index = static_cast<size_t>(stage);
      EXPECT_EQ(group.Take(), costs[index].forward_bytes);
      if (given.schedule == kZeroBubble) {
        chunk->BackwardInput(0);
        EXPECT_EQ(group.Take(), costs[index].backward_bytes - costs[index].weight_bytes);
        chunk->BackwardWeights(0);
        EXPECT_EQ(group.Take(), costs[index].weight_bytes);
      } else {
        chunk->Backward(0);
        EXPECT_EQ(group.Take(), costs[index].backward_bytes);
      }
    }
  }
}

TEST(RankLayout, CopiesOfNeighboursAreOneRange) {
  const RankLayout part = RankLayoutOf(SpecOf({}), 0).value();
  const model::ChunkLayout layout = part.shards[0].layout();
  int64_t elements = 0;
  for (const model::Parameter& parameter : layout.parameters()) {
    if (parameter.replicated) elements += parameter.size;
  }
  EXPECT_GT(elements, 0);
  const model::FlatRange all = {0, layout.num_elements()};
  EXPECT_EQ(NumReplicated(layout, all), elements);
  int64_t end = -1;
  for (const CopiedRange& copies : ReplicatedRanges(layout, all)) {
    EXPECT_GT(copies.range.begin, end) << "neighbours would be one range";
    end = copies.range.begin + copies.range.count;
  }
  const int64_t half = layout.num_elements() / 2;
  EXPECT_EQ(NumReplicated(layout, {0, half}) +
                NumReplicated(layout, {half, layout.num_elements() - half}),
            elements);
}

// Two of four ranks have each head: its rows are summed in one of two slots.
TEST(RankLayout, EachSharedHeadHasASlotOfItsOwnInTheSums) {
  job::v1::JobSpec spec = SpecOf({});
  spec.mutable_parallel()->set_tensor_model_parallel_size(4);
  spec.mutable_model()->set_num_attention_heads(4);
  spec.mutable_model()->set_num_key_value_heads(2);
  for (int rank = 0; rank < 4; ++rank) {
    const RankLayout part = RankLayoutOf(spec, rank).value();
    const model::ChunkLayout layout = part.shards[0].layout();
    int64_t shared = 0, of_all = 0;
    for (const CopiedRange& copies : ReplicatedRanges(layout, {0, layout.num_elements()})) {
      if (copies.num_slots == 1) {
        of_all += copies.range.count;
        continue;
      }
      EXPECT_EQ(copies.num_slots, 2);
      EXPECT_EQ(copies.slot, rank / 2);
      shared += copies.range.count;
    }
    const int64_t rows_of_layer = 2 * spec.model().head_dim();  // a key's and a value's
    EXPECT_EQ(shared, 2 * rows_of_layer * (spec.model().hidden_size() + 1));  // two layers
    EXPECT_EQ(NumReplicated(layout, {0, layout.num_elements()}), of_all + 2 * shared);
  }
}

TEST(ChunkCosts, OfBucketsAddUpToThatOfTheChunk) {
  for (const auto schedule : {k1F1B, kZeroBubble}) {
    for (const int64_t bucket_size : {1, 5000, 1 << 30}) {
      job::v1::JobSpec spec = SpecOf({.schedule = schedule});
      spec.mutable_parallel()->set_data_parallel_size(2);
      spec.mutable_parallel()->set_ddp_bucket_size(bucket_size);
      spec = job::ResolveJobSpec(spec).value();
      const std::vector<plan::ChunkCost> costs = ChunkCostsOf(spec).value();
      const plan::PlanOptions options = RankLayoutOf(spec, 0).value().plan_options;
      for (int chunk = 0; chunk < 2; ++chunk) {
        const plan::ChunkCost& cost = costs[static_cast<size_t>(chunk)];
        EXPECT_EQ(cost.buckets.size(), static_cast<size_t>(options.NumBuckets(chunk)));
        if (bucket_size == 1) {
          EXPECT_EQ(cost.buckets.size(), 2u) << "one for each layer";
        }
        plan::BucketCost sum;
        for (const plan::BucketCost& bucket : cost.buckets) {
          EXPECT_GT(bucket.flops, 0);
          sum.flops += bucket.flops;
          sum.bytes += bucket.bytes;
          sum.gradient_bytes += bucket.gradient_bytes;
          sum.parameter_bytes += bucket.parameter_bytes;
          sum.replicated_bytes += bucket.replicated_bytes;
        }
        const bool splits = schedule == kZeroBubble;
        EXPECT_EQ(sum.flops, splits ? cost.weight_flops : cost.backward_flops);
        EXPECT_EQ(sum.bytes, splits ? cost.weight_bytes : cost.backward_bytes);
        EXPECT_EQ(sum.gradient_bytes, cost.gradient_bytes);
        EXPECT_EQ(sum.parameter_bytes, cost.parameter_bytes);
        EXPECT_EQ(sum.replicated_bytes, cost.replicated_bytes);
      }
    }
  }
}

TEST(RankLayout, MoreReplicasThanTheModelHasPartsAreRefused) {
  job::v1::JobSpec spec = engine::ToyJob(engine::WriteTestText("rank_layout_text"), 1, 1);
  spec.mutable_parallel()->set_data_parallel_size(1024);
  spec.mutable_train()->set_global_batch_size(1024 * spec.train().micro_batch_size());
  EXPECT_EQ(SnapshotPayloadBytes(spec, 0).status(), absl::OkStatus());
  EXPECT_EQ(SnapshotPayloadBytes(spec, 1023).status(),
            absl::InvalidArgumentError(
                "parallel.data_parallel_size: 1024 replicas share the state of a model so small "
                "that nothing is left for rank 1023; use fewer replicas, or a larger model"));
}

}  // namespace
}  // namespace megascale::layout
