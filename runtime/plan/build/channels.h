// The communicators that the plans of a mesh use, by group and channel name. Pure functions.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "runtime/plan/instruction.h"
#include "runtime/plan/mesh.h"

namespace megascale::plan {

// A communicator that the plans of a mesh use.
struct Channel {
  GroupKind group = GroupKind::kNone;
  std::string name = "";
  bool operator==(const Channel&) const = default;
};

// Returns the communicators that every rank opens, in the same order on every rank.
//
// Each channel of a pipeline group carries one direction across every second boundary between
// stages ("activation.0" from stage 0 to 1, "activation.1" from 1 to 2, "activation.0" from 2 to 3
// …). A rank thus uses each channel either for sending or for receiving, and its streams never
// queue behind each other. With several chunks per stage there is also a boundary from the last
// stage to the first. If the number of stages is odd, this boundary has a channel of its own
// ("activation.2").
//
// Tensor-parallel ranks have one channel for their passes and one for their sums of gradients, on
// which they also gather norms and trust sums, as replicas do on that of their shards. The stages
// of a pipeline group gather norms on a channel of their own. With tied ends, a pipeline group has
// two more channels, which its first and last stage use: "embedding" and "head".
struct ChannelOptions {  // as in PlanOptions
  int chunks_per_stage = 1;
  bool has_trust_ratios = false;
  bool has_tied_ends = false;
};
std::vector<Channel> ChannelsOf(const Mesh& mesh, const ChannelOptions& options);

// Returns what the messages of a channel of ChannelsOf carry, ascending.
std::set<Payload> PayloadsOf(const Mesh& mesh, const Channel& channel);

// Returns the channel that a collective, or a pass of tensor-parallel ranks, uses in this mesh.
// GroupKind::kNone: the operation does not communicate in this mesh.
Channel ChannelOf(const Mesh& mesh, OpKind operation);

// Returns the channel of a transfer across the boundary between stage `lower` and the next one; the
// stage after the last is the first.
std::string BoundaryChannel(OpKind transfer, int lower, int num_stages);

}  // namespace megascale::plan
