// Exchanges bytes with the same test on other machines: over the sockets that ranks use, with the
// same proof of a secret.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/comm/store/store.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct PeerOptions {
  megascale::agent::v1::ExchangeRequest exchange;
  // Through which the members find each other; used until they are connected. Borrowed.
  comm::Store* store = nullptr;
  // Set one of these, as in comm::FabricOptions.
  std::string socket_directory;
  std::string interface;
  size_t block_bytes = size_t{2} << 20;  // sent to each other member at a time; a multiple of 8
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration call_timeout = absl::Seconds(10);  // for a block
  Tamper tamper = {};                               // changes what was received
};

struct PeerResult {
  // The rate of what this member sent, while it sent. Its failure names the other members by their
  // node ids.
  PartResult part;
  double latency_seconds = 0;  // there and back, the median; measured by member 0 only
};

// Sends blocks to all other members and compares what comes from them. Fails if a byte differs, if
// a member does not answer in time, or if a connection breaks. What this machine cannot do for
// another reason, such as a lack of memory or a store that does not answer, is a note. Blocking:
// connect_timeout, time_max of the request, and a few call_timeouts, at most.
PeerResult CheckPeers(const PeerOptions& options);

// Returns "exchange with n1".
std::string PartNameOf(const megascale::agent::v1::ExchangeRequest& exchange);

}  // namespace megascale::machine
