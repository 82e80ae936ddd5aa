#include "runtime/engine/groups.h"

#include "absl/strings/str_cat.h"
#include "runtime/optim/sharded_optimizer.h"

namespace megascale::engine {
namespace {

// The groups of one kind, by their first rank.
std::vector<plan::Group> GroupsOfKind(const plan::Mesh& mesh, plan::GroupKind kind) {
  std::vector<plan::Group> groups;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (mesh.IndexInGroup(kind, rank) == 0) groups.push_back(mesh.GroupOf(kind, rank));
  }
  return groups;
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
  return plan::ChannelsOf(mesh, spec.parallel().virtual_pipeline_model_parallel_size(),
                          optim::HasTrustRatios(spec.optimizer()));
}

std::vector<comm::GroupSpec> CommunicatorsOf(const megascale::job::v1::JobSpec& spec,
                                             const plan::Mesh& mesh) {
  std::vector<comm::GroupSpec> communicators;
  for (const plan::Channel& channel : ChannelsOf(spec, mesh)) {
    for (plan::Group& group : GroupsOfKind(mesh, channel.group)) {
      communicators.push_back(
          {.name = CommunicatorName(group.name, channel.name), .ranks = std::move(group.ranks)});
    }
  }
  return communicators;
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

}  // namespace megascale::engine
