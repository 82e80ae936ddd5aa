// The communicators of a job: which groups there are follows from its specification, so the agent
// that makes the shared memory and the ranks that use it agree without talking.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/comm/region.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/step_plan.h"

namespace megascale::engine {

// The mesh of a resolved specification.
absl::StatusOr<plan::Mesh> MeshOf(const megascale::job::v1::JobSpec& spec);

// "pp0.t0/activation.0": the communicator of one channel of one group.
std::string CommunicatorName(const std::string& group, const std::string& channel);

// The channels of the plans of a resolved specification.
std::vector<plan::Channel> ChannelsOf(const megascale::job::v1::JobSpec& spec,
                                      const plan::Mesh& mesh);

// Every communicator of a job, in the same order everywhere.
std::vector<comm::GroupSpec> CommunicatorsOf(const megascale::job::v1::JobSpec& spec,
                                             const plan::Mesh& mesh);

// The node id of every rank, by rank.
std::vector<std::string> NodesByRank(
    const std::vector<megascale::agent::v1::Placement>& placements);

}  // namespace megascale::engine
