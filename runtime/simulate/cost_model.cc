#include "runtime/simulate/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/base/check.h"
#include "runtime/ops/work.h"
#include "runtime/plan/operation.h"

namespace megascale::simulate {
namespace {

using plan::Instruction;
using plan::OpKind;

// Returns the share of a collective's bytes that each link of a ring carries.
double PartOnLink(int members) { return (members - 1.0) / members; }

// A stand-in for a vector in memory, for code that uses only sizes.
tensor::Vector Sized(tensor::DType dtype, int64_t elements) { return {nullptr, dtype, elements}; }

// Returns the bytes of AdamW over `elements`. With `has_update` (LAMB) it does not write the
// weights.
int64_t OptimizerBytes(tensor::DType compute, int64_t elements, bool has_update) {
  const tensor::Vector state = Sized(AccumulationType(compute), elements);
  const bool has_copy = compute != state.dtype && !has_update;
  return ops::WorkOf(
             ops::AdamWArgs{.master = state,
                            .exp_avg = state,
                            .exp_avg_sq = state,
                            .grad = state,
                            .compute_copy = has_copy ? Sized(compute, elements) : tensor::Vector(),
                            .update = has_update ? state : tensor::Vector()})
      .bytes;
}

// Returns the bytes of scaling that update, tensor by tensor, and adding it to the weights.
int64_t ScaledUpdateBytes(tensor::DType compute, int64_t elements) {
  const tensor::Vector state = Sized(AccumulationType(compute), elements);
  const int64_t bytes = ops::WorkOfAddScaled(state).bytes;
  return compute == state.dtype ? bytes
                                : bytes + ops::WorkOfCast(state, Sized(compute, elements)).bytes;
}

// The memory traffic, in bytes, of operations that a rank does alone. Passes are priced by what the
// model records, transfers and collectives by their links.
struct MemoryPrice {
  OpKind operation;
  int64_t (*bytes)(const CostOptions& options, const Instruction& instruction);
};

int64_t ShardElements(const CostOptions& options, const Instruction& instruction) {
  return options.chunks[static_cast<size_t>(instruction.id.chunk())].shard_elements;
}

constexpr MemoryPrice kMemoryPrices[] = {
    // Read from the batch ring, written to the chunk.
    {OpKind::kLoadBatch,
     [](const CostOptions&, const Instruction& instruction) { return 2 * instruction.bytes; }},
    {OpKind::kLoadWindows,
     [](const CostOptions&, const Instruction& instruction) { return 2 * instruction.bytes; }},
    {OpKind::kAddHeadGradient,
     [](const CostOptions& options, const Instruction& instruction) {
       const tensor::DType dtype = AccumulationType(options.compute);
       const int64_t elements = instruction.bytes / static_cast<int64_t>(tensor::SizeOf(dtype));
       return ops::WorkOfAddScaled(Sized(dtype, elements)).bytes;
     }},
    {OpKind::kOptimizerUpdate,
     [](const CostOptions& options, const Instruction& instruction) {
       return OptimizerBytes(options.compute, ShardElements(options, instruction),
                             /*has_update=*/true);
     }},
    {OpKind::kOptimizerStep,
     [](const CostOptions& options, const Instruction& instruction) {
       const int64_t elements = ShardElements(options, instruction);
       return options.plan.has_trust_ratios
                  ? ScaledUpdateBytes(options.compute, elements)
                  : OptimizerBytes(options.compute, elements, /*has_update=*/false);
     }},
};

}  // namespace

bool HasPrice(OpKind kind) {
  if (plan::IsPass(kind) || plan::OperationOf(kind).meeting.group != plan::GroupKind::kNone) {
    return true;
  }
  return std::any_of(std::begin(kMemoryPrices), std::end(kMemoryPrices),
                     [&](const MemoryPrice& price) { return price.operation == kind; });
}

CostModel::CostModel(const CostOptions& options) : options_(options) {
  MEGASCALE_CHECK(static_cast<int>(options.chunks.size()) == options.plan.num_chunks());
  const MachineRates& rates = options.rates;
  MEGASCALE_CHECK(rates.flops_per_second > 0 && rates.memory_bytes_per_second > 0);
  MEGASCALE_CHECK(rates.link_bytes_per_second > 0 && rates.network_bytes_per_second > 0);
  for (int chunk = 0; chunk < options.plan.num_chunks(); ++chunk) {
    for (const Link link : {Link::kInMachine, Link::kBetweenMachines}) {
      AddPasses(chunk, options.chunks[static_cast<size_t>(chunk)].passes, link);
    }
  }
}

double CostModel::BytesPerSecond(Link link) const {
  return link == Link::kInMachine ? options_.rates.link_bytes_per_second
                                  : options_.rates.network_bytes_per_second;
}

void CostModel::AddPasses(int chunk, const model::ChunkPasses& passes, Link link) {
  const int tensor_size = options_.plan.mesh.tensor_size();
  // A single rank exchanges nothing.
  const double part = tensor_size > 1 ? PartOnLink(tensor_size) : 1;
  const model::PassRates rates = {.flops_per_second = options_.rates.flops_per_second,
                                  .memory_bytes_per_second = options_.rates.memory_bytes_per_second,
                                  .exchanged_bytes_per_second = BytesPerSecond(link) / part};
  const auto add = [&](OpKind kind, int bucket, const model::PassOperations& pass) {
    const double seconds = SecondsOf(pass, rates, options_.tp_comm_overlap);
    pass_nanos_[{kind, chunk, bucket, link}] = std::llround(1e9 * seconds);
  };
  const bool splits = options_.plan.splits_backward();
  for (const OpKind forward : {OpKind::kForward, OpKind::kEvaluate}) {
    add(forward, kWholePass, passes.forward);
  }
  add(OpKind::kBackward, kWholePass, passes.backward);
  if (splits) add(OpKind::kWeightGradient, kWholePass, passes.weights);
  for (size_t bucket = 0; bucket < passes.pieces.size(); ++bucket) {
    add(splits ? OpKind::kWeightGradient : OpKind::kBackward, static_cast<int>(bucket),
        passes.pieces[bucket]);
  }
}

int64_t CostModel::NanosOf(const Instruction& instruction, Link link) const {
  MEGASCALE_CHECK(HasPrice(instruction.kind()));
  const int chunk = instruction.id.chunk();
  if (plan::IsPass(instruction.kind())) {
    const bool is_piece =
        instruction.num_buckets > 0 && instruction.num_buckets < options_.plan.NumBuckets(chunk);
    const int bucket = is_piece ? instruction.id.bucket() : kWholePass;
    return pass_nanos_.at({instruction.kind(), chunk, bucket, link});
  }
  return std::llround(1e9 * (SecondsInMemory(instruction) + SecondsOnLink(instruction, link)));
}

double CostModel::SecondsInMemory(const Instruction& instruction) const {
  for (const MemoryPrice& price : kMemoryPrices) {
    if (price.operation != instruction.kind()) continue;
    return static_cast<double>(price.bytes(options_, instruction)) /
           options_.rates.memory_bytes_per_second;
  }
  return 0;
}

double CostModel::SecondsOnLink(const Instruction& instruction, Link link) const {
  if (instruction.group == plan::GroupKind::kNone) return 0;
  double part = 1;
  if (!plan::IsTransfer(instruction.kind())) {
    part = PartOnLink(options_.plan.mesh.GroupSize(instruction.group));
  }
  part *= plan::OperationOf(instruction.kind()).rounds;
  return part * static_cast<double>(instruction.bytes) / BytesPerSecond(link);
}

}  // namespace megascale::simulate
