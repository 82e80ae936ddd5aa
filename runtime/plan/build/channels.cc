#include "runtime/plan/build/channels.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace megascale::plan {
namespace {

constexpr char kActivationChannel[] = "activation";
constexpr char kGradientChannel[] = "gradient";
constexpr char kShardChannel[] = "shard";
constexpr char kNormChannel[] = "norm";
constexpr char kPassChannel[] = "pass";
constexpr char kReplicatedChannel[] = "replicated";
constexpr char kTrustChannel[] = "trust";

}  // namespace

std::string BoundaryChannel(Direction direction, int lower, int num_stages) {
  const bool wraps = lower == num_stages - 1;
  return absl::StrCat(direction == Direction::kActivation ? kActivationChannel : kGradientChannel,
                      ".", wraps && num_stages % 2 == 1 ? 2 : lower % 2);
}

Channel PassChannel() { return {GroupKind::kTensor, kPassChannel}; }

Channel CollectiveChannel(OpKind collective, bool tensor_parallel) {
  switch (collective) {
    case OpKind::kReduceNorm:
      return {GroupKind::kWorld, kNormChannel};
    case OpKind::kSumReplicated:
      return {GroupKind::kTensor, kReplicatedChannel};
    case OpKind::kGatherTrustSums:
      if (tensor_parallel) return {GroupKind::kStage, kTrustChannel};
      [[fallthrough]];
    default:
      return {GroupKind::kData, kShardChannel};
  }
}

std::vector<Channel> ChannelsOf(const Mesh& mesh, int chunks_per_stage, bool has_trust_ratios) {
  std::vector<Channel> channels = {{GroupKind::kWorld, kNormChannel},
                                   {GroupKind::kData, kShardChannel}};
  const int num_stages = mesh.pipeline_size();
  const int num_boundaries = num_stages - (chunks_per_stage > 1 ? 0 : 1);
  for (const Direction direction : {Direction::kActivation, Direction::kGradient}) {
    for (int lower = 0; lower < num_boundaries; ++lower) {
      const Channel channel = {GroupKind::kPipeline, BoundaryChannel(direction, lower, num_stages)};
      if (std::find(channels.begin(), channels.end(), channel) == channels.end()) {
        channels.push_back(channel);
      }
    }
  }
  if (mesh.tensor_size() == 1) return channels;
  channels.push_back({GroupKind::kTensor, kPassChannel});
  channels.push_back({GroupKind::kTensor, kReplicatedChannel});
  if (has_trust_ratios) channels.push_back({GroupKind::kStage, kTrustChannel});
  return channels;
}

}  // namespace megascale::plan
