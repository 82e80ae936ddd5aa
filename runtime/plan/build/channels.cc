#include "runtime/plan/build/channels.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megascale::plan {

std::string BoundaryChannel(OpKind transfer, int lower, int num_stages) {
  const bool wraps = lower == num_stages - 1;
  return absl::StrCat(OperationOf(transfer).meeting.channel, ".",
                      wraps && num_stages % 2 == 1 ? 2 : lower % 2);
}

Channel ChannelOf(const Mesh& mesh, OpKind operation) {
  const Meeting meeting = MeetingIn(mesh, operation);
  return {.group = meeting.group, .name = std::string(meeting.channel)};
}

std::set<Payload> PayloadsOf(const Mesh& mesh, const Channel& channel) {
  std::set<Payload> payloads;
  // A boundary between stages has a number behind the name that its transfers share.
  const absl::string_view name(channel.name);
  for (const Operation& operation : AllOperations()) {
    const Channel of = ChannelOf(mesh, operation.kind);
    if (of.group != channel.group) continue;
    if (of.name == name || absl::StartsWith(name, absl::StrCat(of.name, "."))) {
      payloads.insert(operation.payload);
    }
  }
  return payloads;
}

std::vector<Channel> ChannelsOf(const Mesh& mesh, const ChannelOptions& options) {
  const int num_stages = mesh.pipeline_size();
  const int num_boundaries = num_stages - (options.chunks_per_stage > 1 ? 0 : 1);
  std::vector<Channel> channels;
  const auto add = [&](Channel channel) {
    if (std::find(channels.begin(), channels.end(), channel) != channels.end()) return;
    channels.push_back(std::move(channel));
  };
  for (const GroupKind group : mesh.Kinds()) {
    for (const Operation& operation : AllOperations()) {
      if (operation.for_trust_ratios && !options.has_trust_ratios) continue;
      if (operation.for_tied_ends && !options.has_tied_ends) continue;
      const Channel channel = ChannelOf(mesh, operation.kind);
      if (channel.group != group) continue;
      if (!IsTransfer(operation.kind) || operation.for_tied_ends) {
        add(channel);
        continue;
      }
      for (int lower = 0; lower < num_boundaries; ++lower) {
        add({.group = group, .name = BoundaryChannel(operation.kind, lower, num_stages)});
      }
    }
  }
  return channels;
}

}  // namespace megascale::plan
