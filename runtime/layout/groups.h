// The communicators of a job. They follow from its specification, so the agent that creates the
// shared memory and the ranks that use it agree without a message.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/comm/host/region.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/plan_options.h"

namespace megascale::layout {

// Returns the mesh of a job. Requires: `spec` is resolved.
absl::StatusOr<plan::Mesh> MeshOf(const megascale::job::v1::JobSpec& spec);

// Returns the name of a group's communicator for a channel: "pp0.t0/activation.0".
std::string CommunicatorName(const std::string& group, const std::string& channel);

// Returns the channels that the job's plans use. Requires: `spec` is resolved.
std::vector<plan::Channel> ChannelsOf(const megascale::job::v1::JobSpec& spec,
                                      const plan::Mesh& mesh);

// Returns the communicators of the job that have a member among `ranks`. A machine's agent and its
// ranks all pass the ranks of this machine, so they get the same communicators in the same order.
// Errors: InvalidArgument - the specification cannot be run. Cost: grows with the sizes of these
// groups, not with the number of groups in the job.
absl::StatusOr<std::vector<comm::GroupSpec>> CommunicatorsOf(
    const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh, const std::vector<int>& ranks);

// Returns the ranks that run on a machine, ascending. `nodes`: as NodesByRank.
std::vector<int> RanksOn(const std::vector<std::string>& nodes, const std::string& node_id);

// Returns the node id of every rank, indexed by rank.
std::vector<std::string> NodesByRank(
    const std::vector<megascale::agent::v1::Placement>& placements);

}  // namespace megascale::layout
