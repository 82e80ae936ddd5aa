#include "runtime/plan/operation.h"

#include <algorithm>
#include <iterator>

namespace megascale::plan {
namespace {

constexpr Operation kOperations[] = {
    {.kind = OpKind::kLoadBatch,
     .letters = "L",
     .name = "loading the batch",
     .op_class = OpClass::kLoad,
     .stream = StreamKind::kLoadBatch},
    {.kind = OpKind::kReceiveActivation,
     .letters = "RA",
     .name = "receiving an activation",
     .op_class = OpClass::kReceive,
     .stream = StreamKind::kReceiveActivation,
     .per_microbatch = PerMicrobatch::kAlways,
     .meeting = {GroupKind::kPipeline, "activation"},
     .payload = Payload::kRows,
     .other_end = OpKind::kSendActivation,
     .other_chunk = -1},
    {.kind = OpKind::kForward,
     .letters = "F",
     .name = "forward",
     .op_class = OpClass::kForward,
     .per_microbatch = PerMicrobatch::kAlways,
     .meeting = {GroupKind::kTensor, "pass"},
     .payload = Payload::kRows},
    {.kind = OpKind::kSendActivation,
     .letters = "SA",
     .name = "sending an activation",
     .op_class = OpClass::kSend,
     .stream = StreamKind::kSendActivation,
     .per_microbatch = PerMicrobatch::kAlways,
     .meeting = {GroupKind::kPipeline, "activation"},
     .payload = Payload::kRows,
     .other_end = OpKind::kReceiveActivation,
     .other_chunk = 1},
    {.kind = OpKind::kReceiveGradient,
     .letters = "RG",
     .name = "receiving a gradient",
     .op_class = OpClass::kReceive,
     .stream = StreamKind::kReceiveGradient,
     .per_microbatch = PerMicrobatch::kAlways,
     .goes_back = true,
     .meeting = {GroupKind::kPipeline, "gradient"},
     .payload = Payload::kRows,
     .other_end = OpKind::kSendGradient,
     .other_chunk = 1},
    {.kind = OpKind::kBackward,
     .letters = "B",
     .name = "backward",
     .op_class = OpClass::kBackward,
     .per_microbatch = PerMicrobatch::kAlways,
     .per_bucket = true,
     .goes_back = true,
     .meeting = {GroupKind::kTensor, "pass"},
     .payload = Payload::kRows},
    {.kind = OpKind::kSendGradient,
     .letters = "SG",
     .name = "sending a gradient",
     .op_class = OpClass::kSend,
     .stream = StreamKind::kSendGradient,
     .per_microbatch = PerMicrobatch::kAlways,
     .goes_back = true,
     .meeting = {GroupKind::kPipeline, "gradient"},
     .payload = Payload::kRows,
     .other_end = OpKind::kReceiveGradient,
     .other_chunk = -1},
    {.kind = OpKind::kReduceGradients,
     .letters = "R",
     .name = "reduce-scatter of gradients",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_microbatch = PerMicrobatch::kIfGradientsAreSharded,
     .per_bucket = true,
     .meeting = {GroupKind::kData, "shard"},
     .payload = Payload::kBucket},
    {.kind = OpKind::kReduceNorm,
     .letters = "N",
     .name = "all-gather of norms",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_chunk = false,
     .meeting = {GroupKind::kPipeline, "norm"}},
    {.kind = OpKind::kOptimizerStep,
     .letters = "O",
     .name = "optimizer step",
     .op_class = OpClass::kOptimizer,
     .stream = StreamKind::kOptimizer,
     .owner = Owner::kShard},
    {.kind = OpKind::kGatherParameters,
     .letters = "G",
     .name = "all-gather of parameters",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_bucket = true,
     .meeting = {GroupKind::kData, "shard"},
     .payload = Payload::kBucket},
    {.kind = OpKind::kWeightGradient,
     .letters = "W",
     .name = "gradients of weights",
     .op_class = OpClass::kWeights,
     .per_microbatch = PerMicrobatch::kAlways,
     .per_bucket = true,
     .goes_back = true,
     .meeting = {GroupKind::kTensor, "pass"},
     .payload = Payload::kRows},
    {.kind = OpKind::kOptimizerUpdate,
     .letters = "U",
     .name = "optimizer update",
     .op_class = OpClass::kOptimizer,
     .stream = StreamKind::kOptimizer,
     .owner = Owner::kShard,
     .for_trust_ratios = true},
    {.kind = OpKind::kGatherTrustSums,
     .letters = "T",
     .name = "all-gather of trust sums",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .meeting = {GroupKind::kData, "shard"},
     .for_trust_ratios = true},
    {.kind = OpKind::kSumReplicated,
     .letters = "S",
     .name = "all-reduce of replicated gradients",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_microbatch = PerMicrobatch::kIfGradientsAreSharded,
     .per_bucket = true,
     .meeting = {GroupKind::kTensor, "replicated"},
     .payload = Payload::kReplicated,
     .rounds = 2},
    // On streams that are idle at that time: no gradient is ready before the first forward, and no
    // activation is on its way after the last forward of the last chunk.
    {.kind = OpKind::kSendEmbedding,
     .letters = "SE",
     .name = "sending the embedding",
     .op_class = OpClass::kSend,
     .stream = StreamKind::kSendGradient,
     .per_chunk = false,
     .meeting = {GroupKind::kPipeline, "embedding"},
     .payload = Payload::kEmbedding,
     .other_end = OpKind::kReceiveEmbedding,
     .other_chunk = 1,
     .for_tied_ends = true},
    {.kind = OpKind::kReceiveEmbedding,
     .letters = "RE",
     .name = "receiving the embedding",
     .op_class = OpClass::kReceive,
     .stream = StreamKind::kReceiveGradient,
     .per_chunk = false,
     .meeting = {GroupKind::kPipeline, "embedding"},
     .payload = Payload::kEmbedding,
     .other_end = OpKind::kSendEmbedding,
     .other_chunk = -1,
     .for_tied_ends = true},
    {.kind = OpKind::kSendHeadGradient,
     .letters = "SH",
     .name = "sending the head's gradient",
     .op_class = OpClass::kSend,
     .stream = StreamKind::kSendActivation,
     .per_chunk = false,
     .meeting = {GroupKind::kPipeline, "head"},
     .payload = Payload::kEmbedding,
     .other_end = OpKind::kReceiveHeadGradient,
     .other_chunk = -1,
     .for_tied_ends = true},
    {.kind = OpKind::kReceiveHeadGradient,
     .letters = "RH",
     .name = "receiving the head's gradient",
     .op_class = OpClass::kReceive,
     .stream = StreamKind::kReceiveActivation,
     .per_chunk = false,
     .meeting = {GroupKind::kPipeline, "head"},
     .payload = Payload::kEmbedding,
     .other_end = OpKind::kSendHeadGradient,
     .other_chunk = 1,
     .for_tied_ends = true},
    {.kind = OpKind::kAddHeadGradient,
     .letters = "A",
     .name = "adding the head's gradient",
     .op_class = OpClass::kOptimizer,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_microbatch = PerMicrobatch::kIfGradientsAreSharded,
     .per_bucket = true,
     .for_tied_ends = true},
    {.kind = OpKind::kGatherTensorNorms,
     .letters = "NT",
     .name = "all-gather of norms of tensor ranks",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_chunk = false,
     .meeting = {GroupKind::kTensor, "replicated"}},
    {.kind = OpKind::kGatherDataNorms,
     .letters = "ND",
     .name = "all-gather of norms of replicas",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .per_chunk = false,
     .meeting = {GroupKind::kData, "shard"}},
    {.kind = OpKind::kGatherTensorTrustSums,
     .letters = "TT",
     .name = "all-gather of trust sums of tensor ranks",
     .op_class = OpClass::kCollective,
     .stream = StreamKind::kDataParallel,
     .owner = Owner::kShard,
     .meeting = {GroupKind::kTensor, "replicated"},
     .for_trust_ratios = true},
};

constexpr Operation kUnknown = {};
constexpr Operation kNoOperation = {.letters = "-"};

constexpr bool KindsCountFromOne() {
  for (size_t i = 0; i < std::size(kOperations); ++i) {
    if (kOperations[i].kind != static_cast<OpKind>(i + 1)) return false;
  }
  return true;
}
static_assert(KindsCountFromOne(), "row i is of kind i + 1");

}  // namespace

const Operation& OperationOf(OpKind kind) {
  const auto number = static_cast<size_t>(kind);
  if (number == 0) return kNoOperation;
  return number <= std::size(kOperations) ? kOperations[number - 1] : kUnknown;
}

absl::Span<const Operation> AllOperations() { return kOperations; }

Meeting MeetingIn(const Mesh& mesh, OpKind kind) {
  const Operation& operation = OperationOf(kind);
  return mesh.Has(operation.meeting.group) ? operation.meeting : Meeting{};
}

absl::string_view Name(StreamKind kind) {
  switch (kind) {
    case StreamKind::kCompute:
      return "compute";
    case StreamKind::kLoadBatch:
      return "load-batch";
    case StreamKind::kSendActivation:
      return "send-activation";
    case StreamKind::kReceiveActivation:
      return "receive-activation";
    case StreamKind::kSendGradient:
      return "send-gradient";
    case StreamKind::kReceiveGradient:
      return "receive-gradient";
    case StreamKind::kDataParallel:
      return "data-parallel";
    case StreamKind::kOptimizer:
      return "optimizer";
    case StreamKind::kTensorParallel:
      return "tensor-parallel";
  }
  return "?";
}

absl::string_view Name(Owner owner) { return owner == Owner::kStage ? "stage" : "shard"; }

}  // namespace megascale::plan
