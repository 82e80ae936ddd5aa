// The part of driver_core.h that concerns nodes: they come, go, and take their processes with them.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/transition.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using google::protobuf::util::MessageDifferencer;

namespace {

pb::Failure Unreachable(const std::string& node_id, const std::string& why) {
  pb::Failure found;
  found.mutable_culprit()->set_node_id(node_id);
  found.mutable_culprit()->set_rank(-1);
  found.mutable_culprit()->set_failure_class(telemetry::FAILURE_CLASS_UNREACHABLE);
  found.mutable_culprit()->set_evidence(why);
  return found;
}

}  // namespace

bool Transition::OnNodeJoined(const agent::Hello& hello) {
  NodeRecord* node = FindNode(&state_, hello.node_id());
  if (node == nullptr) {
    node = AddNode(&state_, hello.node_id());
  } else if (node->hello().incarnation() != hello.incarnation()) {
    LoseProcesses(
        hello.node_id(),
        Unreachable(hello.node_id(), "its agent was restarted, its processes died with it"));
    node->clear_draining();
  } else if (node->alive() && MessageDifferencer::Equals(node->hello(), hello)) {
    return false;
  }
  *node->mutable_hello() = hello;
  node->set_alive(true);
  return true;
}

bool Transition::OnNodeLost(const pb::NodeLost& lost) {
  NodeRecord* node = FindNode(&state_, lost.node_id());
  if (node == nullptr || !node->alive() || node->hello().incarnation() != lost.incarnation()) {
    return false;
  }
  node->set_alive(false);
  pb::Failure found = Unreachable(lost.node_id(), lost.why());
  if (lost.has_noticed_at()) *found.mutable_noticed_at() = lost.noticed_at();
  LoseProcesses(lost.node_id(), found);
  return true;
}

bool Transition::OnNodeEvicted(const pb::NodeEvicted& evicted) {
  NodeRecord* node = FindNode(&state_, evicted.node_id());
  if (node == nullptr) return false;
  if (node->evicted() && node->evicted_why() == evicted.why()) return false;
  node->set_evicted(true);
  node->set_evicted_why(evicted.why());
  Leave(evicted.node_id(), "NodeEvicted");
  return true;
}

bool Transition::OnNodeUncordoned(const pb::NodeUncordoned& uncordoned) {
  NodeRecord* node = FindNode(&state_, uncordoned.node_id());
  if (node == nullptr || !node->evicted()) return false;
  node->clear_evicted();
  node->clear_evicted_why();
  return true;
}

bool Transition::OnNodeDraining(const pb::NodeDraining& draining) {
  NodeRecord* node = FindNode(&state_, draining.node_id());
  if (node == nullptr || !node->alive() || node->draining() ||
      node->hello().incarnation() != draining.incarnation()) {
    return false;
  }
  node->set_draining(true);
  Leave(draining.node_id(), "NodeDraining");
  return true;
}

void Transition::Leave(const std::string& node_id, const std::string& reason) {
  for (JobRecord& job : *state_.mutable_jobs()) {
    const std::vector<std::string> nodes = NodesOf(job);
    if (!HoldsSlots(job) || std::find(nodes.begin(), nodes.end(), node_id) == nodes.end()) continue;
    for (auto& fenced : *job.mutable_fenced()) {
      if (fenced.node_id() == node_id) fenced.clear_snapshots();  // the agent drops them
    }
    // One whose ranks have all ended is about to complete, or to fail.
    const bool trains = job.stage() == pb::STAGE_RUN && job.ended_size() < WorldSize(job);
    if (!trains && job.stage() != pb::STAGE_PREFLIGHT) continue;
    job.mutable_leave()->set_node_id(node_id);
    job.mutable_leave()->set_reason(reason);
    job.clear_fenced();
    Enter(&job, trains ? pb::STAGE_LEAVE : pb::STAGE_FENCE);
    Say(&job, control::JOB_STATE_RECOVERING, reason,
        absl::StrCat("leaves node ", node_id,
                     trains ? ": its ranks make a checkpoint and stop" : ""));
  }
}

void Transition::LoseProcesses(const std::string& node_id, const pb::Failure& found) {
  for (JobRecord& job : *state_.mutable_jobs()) {
    const std::vector<std::string> nodes = NodesOf(job);
    if (!HoldsSlots(job) || std::find(nodes.begin(), nodes.end(), node_id) == nodes.end()) continue;
    auto* fenced = job.mutable_fenced();
    fenced->erase(std::remove_if(fenced->begin(), fenced->end(),
                                 [&](const auto& entry) { return entry.node_id() == node_id; }),
                  fenced->end());
    for (const auto& placement : job.placements()) {
      if (placement.node_id() != node_id || FindEnded(job, placement.rank()) != nullptr) continue;
      auto* ended = job.add_ended();
      ended->set_rank(placement.rank());
      ended->set_failed(true);
    }
    Fail(&job, found);
  }
}

}  // namespace megascale::driver
