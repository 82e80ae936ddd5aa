#include "runtime/layout/rank_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"
#include "runtime/job/pipeline_schedule.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/snapshot_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/plan/plan_options.h"
#include "runtime/tensor/arena.h"

namespace megascale::layout {

using megascale::job::v1::JobSpec;

tensor::DType ComputeType(megascale::job::v1::Precision precision) {
  switch (precision) {
    case megascale::job::v1::PRECISION_BF16:
      return tensor::DType::kBF16;
    case megascale::job::v1::PRECISION_FP64:
      return tensor::DType::kF64;
    default:
      return tensor::DType::kF32;
  }
}

std::vector<CopiedRange> ReplicatedRanges(const model::ChunkLayout& layout,
                                          const model::FlatRange& range) {
  std::vector<CopiedRange> ranges;
  for (const model::Parameter& parameter : layout.parameters()) {
    for (const model::ParameterBox& box : parameter.boxes) {
      if (box.num_copies == 1) continue;
      const model::FlatRange part =
          model::Overlap({parameter.offset + box.begin, box.count}, range);
      if (part.count == 0) continue;
      const int num_slots = layout.place().size / box.num_copies;
      const bool merges = !ranges.empty() && num_slots == 1 && ranges.back().num_slots == 1 &&
                          ranges.back().range.begin + ranges.back().range.count == part.begin;
      if (merges) {
        ranges.back().range.count += part.count;
      } else {
        ranges.push_back({part, layout.place().index / box.num_copies, num_slots});
      }
    }
  }
  return ranges;
}

int64_t NumReplicated(const model::ChunkLayout& layout, const model::FlatRange& range) {
  int64_t elements = 0;
  for (const CopiedRange& copies : ReplicatedRanges(layout, range)) elements += copies.summed();
  return elements;
}

std::vector<model::Bucket> RankLayout::BucketsOf(const model::ChunkLayout& layout) const {
  return layout.Buckets(mesh.data_size(), bucket_size);
}

std::vector<BufferedBucket> RankLayout::InGradientBuffers(const model::ChunkLayout& layout) const {
  std::vector<BufferedBucket> all;
  for (const model::Bucket& bucket : BucketsOf(layout)) {
    if (plan_options.zero_stage == 1) {
      all.push_back({.range = {0, layout.padded_elements(mesh.data_size())}, .carried = {}});
      continue;
    }
    const int64_t begin = layout.FirstElement(bucket.first_layer);
    const int64_t before = bucket.range.begin - begin;
    all.push_back({.range = {begin, before + bucket.range.count}, .carried = {begin, before}});
  }
  return all;
}

optim::OptimizerShard RankLayout::ShardOf(const model::ChunkRange& range) const {
  return {.config = config,
          .range = range,
          .num_shards = mesh.data_size(),
          .shard_index = coordinate.data,
          .tensor = tensor,
          .bucket_size = bucket_size};
}

model::ChunkOptions RankLayout::ModelOptions(const model::ChunkRange& range, int num_slots) const {
  return {.config = config,
          .range = range,
          .micro_batch = micro_batch,
          .seq = seq,
          .num_slots = num_slots,
          .compute = compute,
          .split_backward = plan_options.splits_backward(),
          .recompute = recompute,
          .within_documents = within_documents,
          .tensor = tensor};
}

GradientSizes GradientSizesOf(const RankLayout& part, const plan::RankPlan& plan) {
  GradientSizes sizes;
  sizes.head = part.exchanged_embedding;
  std::vector<std::vector<BufferedBucket>> in_buffers;
  for (const optim::OptimizerShard& shard : part.shards) {
    const model::ChunkLayout layout = shard.layout();
    for (const model::Bucket& bucket : part.BucketsOf(layout)) {
      sizes.replicated = std::max(sizes.replicated, NumReplicated(layout, bucket.range));
    }
    in_buffers.push_back(part.InGradientBuffers(layout));
    if (!plan.shards_gradients) continue;
    for (const BufferedBucket& bucket : in_buffers.back()) {
      sizes.carried = std::max(sizes.carried, bucket.carried.count);
    }
    sizes.shards.push_back(layout.padded_elements(shard.num_shards) / shard.num_shards);
    sizes.early.push_back(
        model::TransformerChunk::EarlyElements(part.ModelOptions(shard.range, /*num_slots=*/1)));
  }
  sizes.buffers.resize(static_cast<size_t>(plan.gradient_buffers));
  for (const plan::Instruction& instruction : plan.instructions) {
    if (instruction.gradient_buffer == plan::kNoBuffer) continue;
    int64_t& buffer = sizes.buffers[static_cast<size_t>(instruction.gradient_buffer)];
    const auto chunk = static_cast<size_t>(plan.IndexOfChunk(instruction.id.chunk()));
    const auto bucket = static_cast<size_t>(instruction.id.bucket());
    buffer = std::max(buffer, in_buffers[chunk][bucket].range.count);
  }
  return sizes;
}

int64_t GradientBytes(const GradientSizes& sizes, tensor::DType dtype) {
  int64_t bytes = 0;
  const auto add = [&](int64_t elements) {
    bytes += static_cast<int64_t>(tensor::Arena::BytesFor(dtype, elements));
  };
  for (const int64_t elements : sizes.buffers) add(elements);
  for (const int64_t elements : sizes.shards) add(elements);
  for (const int64_t elements : sizes.early) add(elements);
  add(sizes.carried);
  add(sizes.replicated);
  add(sizes.head);
  return bytes;
}

model::Recompute RecomputeOf(const JobSpec& spec) {
  switch (spec.train().recompute_granularity()) {
    case job::v1::RECOMPUTE_GRANULARITY_SELECTIVE:
      return model::Recompute::kSelective;
    case job::v1::RECOMPUTE_GRANULARITY_FULL:
      return model::Recompute::kFull;
    default:
      return model::Recompute::kNone;
  }
}

absl::StatusOr<std::vector<model::ChunkPasses>> PassesOf(const RankLayout& part) {
  std::vector<model::ChunkPasses> passes;
  const int num_chunks = part.plan_options.num_chunks();
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    ASSIGN_OR_RETURN(const model::ChunkRange range,
                     model::MakeChunkRange(part.config, num_chunks, chunk));
    std::vector<int> first_layers;
    for (const model::Bucket& bucket : part.BucketsOf(part.ShardOf(range).layout())) {
      first_layers.push_back(bucket.first_layer);
    }
    ASSIGN_OR_RETURN(passes.emplace_back(),
                     RecordChunk(part.ModelOptions(range, /*num_slots=*/1), first_layers));
  }
  return passes;
}

absl::StatusOr<std::vector<plan::ChunkCost>> ChunkCostsOf(const JobSpec& spec) {
  ASSIGN_OR_RETURN(const RankLayout part, RankLayoutOf(spec, 0));
  ASSIGN_OR_RETURN(const std::vector<model::ChunkPasses> passes, PassesOf(part));
  return ChunkCostsOf(spec, part, passes);
}

absl::StatusOr<std::vector<plan::ChunkCost>> ChunkCostsOf(
    const JobSpec& spec, const RankLayout& part,
    const std::vector<model::ChunkPasses>& all_passes) {
  const auto num_chunks = static_cast<int>(all_passes.size());
  const auto compute_bytes = static_cast<int64_t>(tensor::SizeOf(part.compute));
  const auto gradient_bytes =
      static_cast<int64_t>(tensor::SizeOf(tensor::AccumulationType(part.compute)));
  const int64_t tokens = part.micro_batch * part.seq;
  std::vector<plan::ChunkCost> costs;
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    ASSIGN_OR_RETURN(const model::ChunkRange range,
                     model::MakeChunkRange(part.config, num_chunks, chunk));
    const model::ChunkPasses& passes = all_passes[static_cast<size_t>(chunk)];
    plan::ChunkCost& cost = costs.emplace_back();
    cost.forward_flops = FlopsOf(passes.forward);
    cost.forward_bytes = ExchangedBytesOf(passes.forward);
    cost.weight_flops = FlopsOf(passes.weights);
    cost.weight_bytes = ExchangedBytesOf(passes.weights);
    cost.backward_flops = FlopsOf(passes.backward) + cost.weight_flops;
    cost.backward_bytes = ExchangedBytesOf(passes.backward) + cost.weight_bytes;
    const optim::OptimizerShard shard = part.ShardOf(range);
    const model::ChunkLayout layout = shard.layout();
    const std::vector<model::Bucket> buckets = part.BucketsOf(layout);
    for (size_t i = 0; i < buckets.size(); ++i) {
      plan::BucketCost& of_bucket = cost.buckets.emplace_back();
      of_bucket.flops = FlopsOf(passes.pieces[i]);
      of_bucket.bytes = ExchangedBytesOf(passes.pieces[i]);
      of_bucket.gradient_bytes = buckets[i].range.count * gradient_bytes;
      of_bucket.parameter_bytes = buckets[i].range.count * compute_bytes;
      of_bucket.replicated_bytes = NumReplicated(layout, buckets[i].range) * gradient_bytes;
      cost.gradient_bytes += of_bucket.gradient_bytes;
      cost.parameter_bytes += of_bucket.parameter_bytes;
      cost.replicated_bytes += of_bucket.replicated_bytes;
    }
    const int64_t trust_sums =
        int64_t{shard.num_parts()} * optim::NumTrustSums(spec.optimizer(), layout);
    cost.output_bytes = tokens * part.config.hidden_size * compute_bytes / part.tensor.size;
    cost.trust_bytes = trust_sums * static_cast<int64_t>(sizeof(double));
  }
  return costs;
}

namespace {

void AddTiedEnds(RankLayout* part) {
  const int64_t elements = model::EmbeddingElements(part->config, part->tensor.size);
  const auto bytes = [&](tensor::DType dtype) {
    return elements * static_cast<int64_t>(tensor::SizeOf(dtype));
  };
  part->plan_options.has_tied_ends = true;
  part->plan_options.embedding_bytes = bytes(part->compute);
  part->plan_options.head_gradient_bytes = bytes(tensor::AccumulationType(part->compute));
  const int stage = part->coordinate.pipeline;
  const bool is_end = stage == 0 || stage == part->mesh.pipeline_size() - 1;
  part->exchanged_embedding = is_end ? elements : 0;
}

}  // namespace

absl::StatusOr<RankLayout> RankLayoutOf(const JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const plan::Mesh mesh, MeshOf(spec));
  return RankLayoutOf(spec, mesh, rank);
}

absl::StatusOr<RankLayout> RankLayoutOf(const JobSpec& spec, const plan::Mesh& mesh, int rank) {
  RankLayout mine;
  mine.mesh = mesh;
  if (!mine.mesh.Contains(rank)) {
    return absl::InvalidArgumentError("engine: the rank is not in the mesh");
  }
  mine.coordinate = mine.mesh.CoordinateOf(rank);
  mine.tensor = {.size = mine.mesh.tensor_size(),
                 .index = mine.coordinate.tensor,
                 .whole_exchanges = job::HasWholeTensorExchanges(spec)};
  ASSIGN_OR_RETURN(mine.config, model::MakeModelConfig(spec.model()));
  mine.compute = ComputeType(spec.train().precision());
  mine.micro_batch = spec.train().micro_batch_size();
  mine.seq = spec.train().seq_length();
  mine.recompute = RecomputeOf(spec);
  mine.within_documents = job::AttendsWithinDocuments(spec);
  mine.bucket_size = spec.parallel().ddp_bucket_size();
  const plan::ScheduleOptions schedule = job::ScheduleOf(spec);
  mine.plan_options = {
      .mesh = mine.mesh,
      .schedule = plan::ScheduleInUse(schedule),
      .chunks_per_stage = schedule.chunks_per_stage,
      .num_microbatches = schedule.num_microbatches,
      .spare_slots = spec.parallel().overlap_p2p_communication() ? 1 : 0,
      .overlap = {.grad_reduce = spec.parallel().overlap_grad_reduce(),
                  .param_gather = spec.parallel().overlap_param_gather(),
                  .p2p_communication = spec.parallel().overlap_p2p_communication()},
      .has_trust_ratios = optim::HasTrustRatios(spec.optimizer()),
      .zero_stage = spec.parallel().zero_stage(),
      .every_chunk_reads_batch = mine.within_documents};
  if (mine.config.tied && mesh.pipeline_size() > 1) AddTiedEnds(&mine);
  const int num_chunks = mine.plan_options.num_chunks();
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    ASSIGN_OR_RETURN(const model::ChunkRange range,
                     model::MakeChunkRange(mine.config, num_chunks, chunk));
    const optim::OptimizerShard shard = mine.ShardOf(range);
    mine.plan_options.num_buckets.push_back(
        static_cast<int>(mine.BucketsOf(shard.layout()).size()));
    if (chunk % mine.mesh.pipeline_size() == mine.coordinate.pipeline) mine.shards.push_back(shard);
  }
  return mine;
}

namespace {

std::vector<optim::StateSlice> StateLayoutOf(const RankLayout& mine) {
  std::vector<optim::StateSlice> state;
  for (const optim::OptimizerShard& shard : mine.shards) {
    const auto of_chunk = optim::ShardedOptimizer::StateLayout(shard, mine.compute);
    state.insert(state.end(), of_chunk.begin(), of_chunk.end());
  }
  return state;
}

}  // namespace

absl::StatusOr<std::vector<optim::StateSlice>> StateLayoutOf(const JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const RankLayout mine, RankLayoutOf(spec, rank));
  return StateLayoutOf(mine);
}

absl::StatusOr<int64_t> SnapshotPayloadBytes(const JobSpec& spec, int rank) {
  ASSIGN_OR_RETURN(const RankLayout mine, RankLayoutOf(spec, rank));
  return SnapshotPayloadBytes(mine, rank);
}

absl::StatusOr<int64_t> SnapshotPayloadBytes(const RankLayout& mine, int rank) {
  const std::vector<optim::StateSlice> state = StateLayoutOf(mine);
  if (state.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.data_parallel_size: ", mine.mesh.data_size(),
                     " replicas share the state of a model so small that nothing is left for rank ",
                     rank, "; use fewer replicas, or a larger model"));
  }
  ASSIGN_OR_RETURN(const checkpoint::ShardLayout layout, SnapshotLayoutOf(rank, state));
  return layout.size_bytes();
}

}  // namespace megascale::layout
