#include "controlplane/driver/exchanges/party.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace megascale::driver {

const v1::NodeRecord* FindNode(const v1::DriverState& state, absl::string_view node_id) {
  const auto& nodes = state.nodes();
  const auto it = std::lower_bound(
      nodes.begin(), nodes.end(), node_id,
      [](const v1::NodeRecord& node, absl::string_view id) { return node.hello().node_id() < id; });
  return it != nodes.end() && it->hello().node_id() == node_id ? &*it : nullptr;
}

v1::NodeRecord* FindNode(v1::DriverState* state, absl::string_view node_id) {
  return const_cast<v1::NodeRecord*>(FindNode(*state, node_id));
}

std::string PartyOf(const v1::NodeRecord& node, const v1::NodeRecord& other) {
  if (node.certificate().empty()) return absl::StrCat("node ", node.hello().node_id());
  if (node.certificate() == other.certificate()) return absl::StrCat("address ", node.address());
  return absl::StrCat("certificate ", node.certificate());
}

std::string MachineOf(const v1::NodeRecord& node) {
  if (node.certificate().empty()) return node.hello().machine_id();
  return absl::StrCat(node.certificate(), " at ", node.address());
}

}  // namespace megascale::driver
