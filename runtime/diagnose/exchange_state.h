// Why an exchange that all its members have entered does not end: what has been moved between each
// two of them. Pure functions of what the ranks' communicators show (telemetry/exchange_board.h).
//
// The sender's bytes pass three marks: ready, transmitted, delivered. The mark where they stop
// tells the cause. Bytes that stop between ready and delivered (not started, not transmitted, not
// delivered) accuse the way between two ranks, or the rank that all these ways have in common. If
// all ready bytes have arrived (device not ready), the sender is the cause. Source: Mycroft, SOSP
// '25, table 4.
//
// A rank's report is a claim about itself. It can raise suspicion of the way between two ranks, but
// a rank is named only if its own report agrees. So a process that shows nonsense can make only
// itself a suspect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace megascale::diagnose {

// What one rank shows of a call towards one peer.
struct ShownFlow {
  int peer = -1;  // world rank
  int64_t send_bytes = 0;
  int64_t transmitted_bytes = 0;
  int64_t delivered_bytes = 0;
  int64_t receive_bytes = 0;
  int64_t received_bytes = 0;
  double quiet_seconds = 0;  // since a byte moved
};

// What one rank shows of the call in question.
struct ShownCall {
  int rank = -1;
  std::string node;
  bool is_known = false;   // its agent answered
  bool is_inside = false;  // the call runs there
  std::vector<ShownFlow> flows;
};

// How far the bytes of a sender have come.
enum class FlowState {
  kDone,
  kNotStarted,      // nothing has been transmitted
  kNotTransmitted,  // some bytes are ready and do not leave the sender
  kNotDelivered,    // some bytes have left the sender and do not arrive
  kNotReady,        // all bytes that were made ready have arrived: the device has not made the rest
};

// What is known of the bytes from one rank to another.
struct FlowBytes {
  int64_t expected = 0;  // by the receiver; as `ready` if only the sender is known
  int64_t ready = 0;
  int64_t transmitted = 0;
  int64_t arrived = 0;
};
FlowState StateOf(const FlowBytes& bytes);

// Returns "not started", "not transmitted" …
const char* Name(FlowState state);

struct StuckFlow {
  int from = -1;  // world ranks
  int to = -1;
  FlowState state = FlowState::kDone;
  int64_t ready_bytes = 0;
  int64_t transmitted_bytes = 0;
  int64_t arrived_bytes =
      0;  // as the receiver reports; if the receiver reports nothing, as the sender reports
  double quiet_seconds = 0;
};

struct ExchangeVerdict {
  FlowState state = FlowState::kDone;  // kDone: nothing stuck is shown
  int rank = -1;                       // that is the cause; -1: none is named
  // The way between these two ranks is the cause, and neither rank alone is named; -1: it is not.
  int from = -1;
  int to = -1;
  // The end of the way that is likelier at fault: the receiver, if all that it sent has arrived and
  // the sender says that its bytes have left it. Only a hint for the reader, because it rests on
  // the sender's word. -1: unknown.
  int likely = -1;
  // The network of this machine is the cause: a number as JoinExchanges got it; -1: it is not.
  int machine = -1;
  std::vector<StuckFlow> stuck;  // the cause's first, then by the time since a byte moved
};

// Requires: ranks differ. Reports about ranks that are not in `members` are ignored.
ExchangeVerdict ExplainExchange(absl::Span<const ShownCall> members);

// Joins the verdicts about several exchanges. If only one exchange is stuck, and its verdict names
// a rank or the way between two ranks, returns that verdict. Otherwise the cause is the rank that
// all verdicts name, or else what all stuck flows have in common: a rank (if one of the verdicts
// names it), the way between two ranks or two machines (`from` and `to` are then the ends of one of
// the flows), or one machine's network. `machine_of`: by rank.
ExchangeVerdict JoinExchanges(absl::Span<const ExchangeVerdict> verdicts,
                              absl::Span<const int> machine_of);

}  // namespace megascale::diagnose
