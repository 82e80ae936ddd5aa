// How far the running call of a communicator has come, for diagnosis by other processes. Give the
// Fabric a CallProgress, such as telemetry::ExchangeWriter, to see it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/comm/communicator.h"

namespace megascale::comm {

// What a call has moved to and from one other member. For a call of several phases (all-reduce): in
// the present phase.
struct PeerProgress {
  int world_rank = -1;
  int64_t send_bytes = 0;         // that the peer gets; all are ready once the call has begun
  int64_t transmitted_bytes = 0;  // of them: in shared memory, or given to the network
  int64_t delivered_bytes = 0;    // of them: taken by the peer, or by its kernel over a network
  int64_t receive_bytes = 0;      // that the peer is to send
  int64_t received_bytes = 0;     // of them: are here
};

// Threads: Register on one thread at a time; the others on the channel's thread. Must not block.
class CallProgress {
 public:
  virtual ~CallProgress() = default;
  // Adds a communicator and returns its channel, or -1: it is not shown.
  virtual int Register(absl::string_view group) = 0;
  virtual void Begin(int channel, const CallEvent& call) = 0;
  // The call has moved bytes, or waits. `peers`: all other members that it exchanges bytes with.
  virtual void Update(int channel, absl::Span<const PeerProgress> peers) = 0;
  virtual void End(int channel, const CallEvent& call) = 0;
};

}  // namespace megascale::comm
