#include "controlplane/driver/exchanges/failed_links.h"

#include <algorithm>

#include "controlplane/driver/exchanges/party.h"
#include "runtime/base/repeated.h"

namespace megascale::driver {
namespace {

// Agents that share a machine are told apart by their node ids.
bool IsWithinOneMachine(const v1::FailedLink& link) {
  return link.one().machine_id() == link.other().machine_id();
}

bool IsAt(const v1::NodeRecord& node, const v1::FailedLinkEnd& end, const v1::FailedLink& link) {
  if (node.hello().node_id() == end.node_id()) return true;
  return !IsWithinOneMachine(link) && !end.machine_id().empty() &&
         MachineOf(node) == end.machine_id();
}

bool IsBetween(const v1::FailedLink& link, const v1::NodeRecord& node,
               const v1::NodeRecord& other) {
  return (IsAt(node, link.one(), link) && IsAt(other, link.other(), link)) ||
         (IsAt(node, link.other(), link) && IsAt(other, link.one(), link));
}

v1::FailedLinkEnd EndAt(const v1::NodeRecord& node) {
  v1::FailedLinkEnd end;
  end.set_node_id(node.hello().node_id());
  end.set_machine_id(MachineOf(node));
  return end;
}

}  // namespace

void NoteFailedLink(absl::string_view one, absl::string_view other, int64_t now_unix_nanos,
                    v1::DriverState* state) {
  const v1::NodeRecord* node = FindNode(*state, one);
  const v1::NodeRecord* peer = FindNode(*state, other);
  if (node == nullptr || peer == nullptr || node == peer) return;
  if (!node->alive() || !peer->alive()) return;
  auto* links = state->mutable_failed_links();
  base::EraseIf(links, [&](const auto& link) { return IsBetween(link, *node, *peer); });
  v1::FailedLink* link = links->Add();
  *link->mutable_one() = EndAt(*node);
  *link->mutable_other() = EndAt(*peer);
  link->set_failed_unix_nanos(now_unix_nanos);
  base::KeepNewest(kFailedLinksMax, links);
}

void ForgetOldLinks(int64_t now_unix_nanos, v1::DriverState* state) {
  base::EraseIf(state->mutable_failed_links(), [&](const auto& link) {
    return now_unix_nanos - link.failed_unix_nanos() > absl::ToInt64Nanoseconds(kFailedLinkMemory);
  });
}

void ForgetLinksAmong(const std::vector<std::string>& node_ids, v1::DriverState* state) {
  if (state->failed_links().empty()) return;
  std::vector<const v1::NodeRecord*> nodes;
  for (const std::string& node_id : node_ids) {
    if (const v1::NodeRecord* node = FindNode(*state, node_id); node != nullptr)
      nodes.push_back(node);
  }
  const auto is_at_any = [&](const v1::FailedLinkEnd& end, const v1::FailedLink& link) {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const auto* node) { return IsAt(*node, end, link); });
  };
  base::EraseIf(state->mutable_failed_links(), [&](const v1::FailedLink& link) {
    return is_at_any(link.one(), link) && is_at_any(link.other(), link);
  });
}

namespace {

bool IsAtEitherEnd(const v1::NodeRecord& node, const v1::FailedLink& link) {
  return IsAt(node, link.one(), link) || IsAt(node, link.other(), link);
}

}  // namespace

bool HasFailedLink(const v1::DriverState& state, absl::string_view node_id) {
  const v1::NodeRecord* node = FindNode(state, node_id);
  const auto& links = state.failed_links();
  return node != nullptr && std::any_of(links.begin(), links.end(), [&](const auto& link) {
           return IsAtEitherEnd(*node, link);
         });
}

bool ForgetLinksOf(absl::string_view node_id, v1::DriverState* state) {
  if (!HasFailedLink(*state, node_id)) return false;
  const v1::NodeRecord* node = FindNode(*state, node_id);
  base::EraseIf(state->mutable_failed_links(),
                [&](const auto& link) { return IsAtEitherEnd(*node, link); });
  return true;
}

NodePairs FailedPairs(const v1::DriverState& state) {
  NodePairs pairs;
  for (const v1::FailedLink& link : state.failed_links()) {
    std::vector<std::string> ones;
    std::vector<std::string> others;
    for (const v1::NodeRecord& node : state.nodes()) {
      if (IsAt(node, link.one(), link)) ones.push_back(node.hello().node_id());
      if (IsAt(node, link.other(), link)) others.push_back(node.hello().node_id());
    }
    for (const std::string& one : ones) {
      for (const std::string& other : others) pairs.emplace_back(one, other);
    }
  }
  return pairs;
}

}  // namespace megascale::driver
