#include "runtime/layout/groups.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/layout/ring_sizes.h"
#include "runtime/optim/sharded_optimizer.h"

namespace megascale::layout {
namespace {

// Returns the groups of one kind with a member among `ranks`, by their first rank.
std::vector<plan::Group> GroupsOfKind(const plan::Mesh& mesh, plan::GroupKind kind,
                                      const std::vector<int>& ranks) {
  std::map<int, plan::Group> groups;
  for (const int rank : ranks) {
    plan::Group group = mesh.GroupOf(kind, rank);
    groups.try_emplace(group.ranks.front(), std::move(group));
  }
  std::vector<plan::Group> in_order;
  for (auto& [first, group] : groups) in_order.push_back(std::move(group));
  return in_order;
}

}  // namespace

absl::StatusOr<plan::Mesh> MeshOf(const megascale::job::v1::JobSpec& spec) {
  return plan::Mesh::Create({.data = spec.parallel().data_parallel_size(),
                             .pipeline = spec.parallel().pipeline_model_parallel_size(),
                             .tensor = spec.parallel().tensor_model_parallel_size()});
}

std::string CommunicatorName(const std::string& group, const std::string& channel) {
  return absl::StrCat(group, "/", channel);
}

std::vector<plan::Channel> ChannelsOf(const megascale::job::v1::JobSpec& spec,
                                      const plan::Mesh& mesh) {
  return plan::ChannelsOf(
      mesh, {.chunks_per_stage = spec.parallel().virtual_pipeline_model_parallel_size(),
             .has_trust_ratios = optim::HasTrustRatios(spec.optimizer()),
             .has_tied_ends = spec.model().tie_word_embeddings() && mesh.pipeline_size() > 1});
}

absl::StatusOr<std::vector<comm::GroupSpec>> CommunicatorsOf(
    const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh,
    const std::vector<int>& ranks) {
  ASSIGN_OR_RETURN(const RingSizes rings, RingSizes::Create(spec, mesh));
  std::vector<comm::GroupSpec> communicators;
  for (const plan::Channel& channel : ChannelsOf(spec, mesh)) {
    const size_t ring_bytes = rings.Of(channel);
    for (plan::Group& group : GroupsOfKind(mesh, channel.group, ranks)) {
      communicators.push_back({.name = CommunicatorName(group.name, channel.name),
                               .ranks = std::move(group.ranks),
                               .ring_bytes = ring_bytes});
    }
  }
  return communicators;
}

std::vector<int> RanksOn(const std::vector<std::string>& nodes, const std::string& node_id) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (nodes[rank] == node_id) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<std::string> NodesByRank(
    const std::vector<megascale::agent::v1::Placement>& placements) {
  std::vector<std::string> nodes(placements.size());
  for (const auto& placement : placements) {
    const auto rank = static_cast<size_t>(placement.rank());
    if (rank < nodes.size()) nodes[rank] = placement.node_id();
  }
  return nodes;
}

}  // namespace megascale::layout
