// A node, and who speaks through it. Node ids and machine ids are claims: whoever has the key of
// one certificate can make nodes of any names. So what several nodes say counts once for each
// party. Pure; threads: plain functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/driver_log.pb.h"

namespace megascale::driver {

// Find a node by its id; null: there is no such node. The state's nodes are in the order of ids.
const v1::NodeRecord* FindNode(const v1::DriverState& state, absl::string_view node_id);
v1::NodeRecord* FindNode(v1::DriverState* state, absl::string_view node_id);

// Returns the party that speaks through `node` about `other`: the node's certificate; or, if
// `other` has the same certificate because machines share it, the address of the node's connection.
// Agents without certificates run as the driver's own user, who is trusted: each is a party.
std::string PartyOf(const v1::NodeRecord& node, const v1::NodeRecord& other);

// Returns what stands for the node's machine where machines are counted: the node's certificate and
// address; without a certificate, its machine id.
std::string MachineOf(const v1::NodeRecord& node);

}  // namespace megascale::driver
