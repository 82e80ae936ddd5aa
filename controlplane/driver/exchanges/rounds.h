// Rounds: three to eight machines exchange bytes, each with each other one at the same time, as
// collectives of ranks do. Pairs find a bad machine or link; a round shows what the network carries
// when all send at once. Pure; threads: plain functions.
// Each time that exchanges are demanded of a machine, it wants one round. Whatever the result, it
// wants no other: a round that fails or is slow does not tell which machine is at fault; its result
// is only shown.
// Cost: N machines carry out N parts, each with at most kRoundMax - 1 others, and all rounds run at
// the same time. The members find each other through the driver with kRoundMax messages for each
// member, so the number of messages grows as N and not as its square. The members of a round are as
// far apart in the order of their ids as they can be, so that all rounds together still load the
// links between switches.
// Source: the checks between machines of MegaScale (Jiang et al., NSDI 2024, section 4).
#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "proto/driver_log.pb.h"

namespace megascale::driver {

inline constexpr int kRoundMin = 3;  // two machines are a pair
inline constexpr int kRoundMax = 8;

// Whether the exchange is a round.
bool IsRound(const v1::Exchange& exchange);

// Whether the machine should still take part in a round.
bool WantsRound(const v1::NodeRecord& node);

// Returns the members of each round that the machines begin, no machine twice. Each round has a
// member that wants a round. Leaves out machines that exchange now or cannot exchange, and machines
// that have failed and never passed, because they would make the round fail. `machines`: free, in
// the order of their ids. `share_one_machine`: ShareOneMachine of exchanges.h; unless it is true, a
// round has only one agent of each machine. Returns `num_max` rounds at most; fewer than kRoundMin
// machines begin none.
std::vector<std::vector<std::string>> ChooseRounds(
    const std::vector<const v1::NodeRecord*>& machines, bool share_one_machine, int num_max);

// Returns the result of a round for one of its members, without the time. Requires: all parts have
// ended. The rate and the failure are those that the member reported. If its part failed, and
// another member could not carry out its part or gave no result, the result is a note and no
// failure, because the other member explains the failure.
megascale::control::v1::ExchangeResult RoundResultFor(const v1::Exchange& round, int member);

}  // namespace megascale::driver
