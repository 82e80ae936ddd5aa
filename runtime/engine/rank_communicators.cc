#include "runtime/engine/rank_communicators.h"

#include <cstddef>
#include <utility>

#include "absl/memory/memory.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/layout/groups.h"

namespace megascale::engine {
namespace {

std::string CommunicatorNameOf(const plan::RankPlan& plan, plan::GroupKind group,
                               const std::string& channel) {
  return layout::CommunicatorName(plan.mesh.GroupName(group, plan.rank), channel);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankCommunicators>> RankCommunicators::Create(
    comm::FabricOptions fabric, const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh) {
  const std::vector<int> here =
      layout::RanksOn(fabric.placements, fabric.placements.at(static_cast<size_t>(fabric.rank)));
  ASSIGN_OR_RETURN(std::vector<comm::GroupSpec> groups, layout::CommunicatorsOf(spec, mesh, here));
  ASSIGN_OR_RETURN(auto made, comm::Fabric::Create(std::move(fabric), std::move(groups)));
  return absl::WrapUnique(new RankCommunicators(std::move(made), layout::ChannelsOf(spec, mesh)));
}

absl::Status RankCommunicators::MakeHostCommunicators(const plan::RankPlan& plan) {
  for (const plan::Channel& channel : channels_) {
    const std::string name = CommunicatorNameOf(plan, channel.group, channel.name);
    ASSIGN_OR_RETURN(host_communicators_[name], fabric_->Make(name));
  }
  // Those over which the norm goes.
  const auto of = [&](plan::OpKind norm) -> comm::HostCommunicator* {
    const plan::Channel channel = plan::ChannelOf(plan.mesh, norm);
    if (channel.group == plan::GroupKind::kNone) return nullptr;
    return host_communicators_.at(CommunicatorNameOf(plan, channel.group, channel.name)).get();
  };
  all_ = AllRanks({.tensor = of(plan::OpKind::kGatherTensorNorms),
                   .data = of(plan::OpKind::kGatherDataNorms),
                   .pipeline = of(plan::OpKind::kReduceNorm)});
  return absl::OkStatus();
}

absl::Status RankCommunicators::Join(const std::vector<const plan::RankPlan*>& plans,
                                     device::Device* device, const RankStreams& streams) {
  RETURN_IF_ERROR(fabric_->Connect());
  RETURN_IF_ERROR(MakeHostCommunicators(*plans.front()));
  const auto for_each_exchange = [&](const auto& visit) {
    for (const plan::RankPlan* plan : plans) {
      for (const plan::Instruction& i : plan->instructions) {
        if (i.group == plan::GroupKind::kNone) continue;
        visit(i, CommunicatorNameOf(*plan, i.group, i.channel));
      }
    }
  };
  std::map<std::string, stream::Stream*> stream_of;
  for_each_exchange([&](const plan::Instruction& instruction, const std::string& name) {
    stream::Stream*& known = stream_of[name];
    stream::Stream* const own = streams.ExchangeStreamOf(instruction);
    MEGASCALE_CHECK(known == nullptr || known == own);
    known = own;
  });
  // In the order of names, which all ranks share: a device may wait for all members of a group,
  // also for those that make no call there and so may name any stream.
  for (const auto& [name, host] : host_communicators_) {
    const auto [found, is_unused] = stream_of.emplace(name, &streams.compute());
    if (is_unused && !device->starts_groups_together()) continue;
    ASSIGN_OR_RETURN(communicators_[name], device->MakeCommunicator(host.get(), found->second));
  }
  // Look up the communicators once: building a name takes heap memory, which steps must not do.
  for_each_exchange([&](const plan::Instruction& i, const std::string& name) {
    communicator_of_[i.id] = communicators_.at(name).get();
  });
  return absl::OkStatus();
}

comm::Communicator* RankCommunicators::Of(const plan::Instruction& instruction) const {
  if (instruction.group == plan::GroupKind::kNone) return nullptr;
  const auto found = communicator_of_.find(instruction.id);
  MEGASCALE_CHECK(found != communicator_of_.end());
  return found->second;
}

}  // namespace megascale::engine
