#include "controlplane/driver/exchanges/party.h"

#include "absl/strings/str_cat.h"

namespace megascale::driver {

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
