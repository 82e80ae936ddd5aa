// Exchanges bytes with the same test on other machines, over the same kind of socket that ranks
// use. The members prove to each other that they know the secret, as ranks do.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/comm/store/store.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct PeerOptions {
  megascale::agent::v1::ExchangeRequest exchange;
  // The members find each other through this store; used until they are connected. Borrowed.
  comm::Store* store = nullptr;
  // Set one of these, as in comm::FabricOptions.
  std::string socket_directory;
  std::string interface;
  size_t block_bytes = size_t{2} << 20;  // size of a block for one other member; a multiple of 8
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration call_timeout = absl::Seconds(10);  // for a block
  Tamper tamper = {};                               // changes what was received
};

struct PeerResult {
  // `bytes_per_second` counts what this member sent in the time in which it sent. `failure` names
  // the other members by their node ids.
  PartResult part;
  double latency_seconds = 0;  // median round trip; only member 0 measures it
  bool peer_missing = false;   // `failure` says that the members did not get connected
};

// Sends blocks to all other members and compares what they send. Fails if a byte differs, if a
// member does not answer in time, or if a connection breaks. If the test cannot run for another
// reason, such as a lack of memory or a store that does not answer, that is a note. Blocking: at
// most the sum of connect_timeout, time_max of the request, and a few call_timeouts.
PeerResult CheckPeers(const PeerOptions& options);

// Returns "exchange with n1".
std::string PartNameOf(const megascale::agent::v1::ExchangeRequest& exchange);

}  // namespace megascale::machine
