#include "controlplane/driver/admission/admission.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/placement.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/layout/node_memory.h"

namespace megascale::driver {
namespace {

// A fleet of many kinds of machines is not searched to its end while the driver's thread waits.
constexpr int kTriesMax = 16;

absl::Status CheckNode(const NodeRecord& node, const layout::NodeMemory& needed) {
  const megascale::agent::v1::Resources& has = node.hello().resources();
  absl::Status status;
  if (has.descriptors() > 0) status = layout::CheckDescriptors(needed, has.descriptors());
  if (status.ok() && has.memory_bytes() > 0) {
    status = layout::CheckRings(needed, base::MemoryLimit{.available_bytes = has.memory_bytes(),
                                                          .limit_bytes = has.memory_bytes(),
                                                          .source = has.memory_source()});
  }
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("node ", node.hello().node_id(), ": ", status.message()));
}

bool TellsLimits(const NodeRecord& node) {
  return node.hello().resources().descriptors() > 0 || node.hello().resources().memory_bytes() > 0;
}

}  // namespace

absl::Status CheckExchanges(const DriverState& state,
                            const megascale::driver::v1::JobSubmitted& submit) {
  if (std::none_of(state.nodes().begin(), state.nodes().end(), TellsLimits)) {
    return absl::OkStatus();
  }
  JobRecord job;
  *job.mutable_submitted() = submit;
  job.set_stage(megascale::driver::v1::STAGE_QUEUED);
  std::vector<std::string> nodes = NodesIfAlone(state, job);
  if (nodes.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const layout::JobMemory memory, layout::JobMemory::Create(submit.spec()));
  absl::Status refusal;
  for (int i = 0; i < kTriesMax && !nodes.empty(); ++i) {
    std::map<std::string, std::vector<int>> ranks_of;
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      ranks_of[nodes[rank]].push_back(static_cast<int>(rank));
    }
    bool all_have_enough = true;
    for (const auto& [node_id, ranks] : ranks_of) {
      const NodeRecord* node = FindNode(state, node_id);
      absl::Status status = CheckNode(*node, memory.ExchangesOfMachine(ranks));
      if (status.ok()) continue;
      all_have_enough = false;
      if (refusal.ok()) refusal = std::move(status);
      auto* refusing = job.add_refusing();
      refusing->set_node_id(node_id);
      refusing->set_incarnation(node->hello().incarnation());
    }
    if (all_have_enough) return absl::OkStatus();
    nodes = NodesIfAlone(state, job);
  }
  return nodes.empty() ? refusal : absl::OkStatus();
}

}  // namespace megascale::driver
