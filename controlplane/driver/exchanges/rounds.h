// Rounds: three to eight machines exchange bytes, each with each other one at the same time, as
// collectives of ranks do. Pairs find a bad machine or link; a round shows what the network carries
// when all send at once. Pure; threads: plain functions.
//
// A machine wants one round after each time that its exchanges were demanded, whatever comes of it:
// a round that fails or is slow names no machine, asks for nothing more, and is shown.
// Cost: N machines carry out N parts with kRoundMax - 1 others at most, in rounds of which all run
// at the same time. The members find each other through the driver: kRoundMax messages for each of
// them, so that messages grow as N and not as its square. All machines together still load the
// links between switches: the members of a round are as far apart in the order of their ids as they
// can be.
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

// Whether the machine is to take part in a round yet.
bool WantsRound(const v1::NodeRecord& node);

// Returns the members of each round that the machines begin, no machine twice. Each round has a
// member that wants one. Leaves out machines that exchange now, that do not exchange, or that have
// failed with all others: they would make the round fail. `machines`: free, in the order of their
// ids. `share_one_machine`: ShareOneMachine of exchanges.h; unless it is set, a round has one agent
// of each machine. Returns `num_max` rounds at most; fewer than kRoundMin machines begin none.
std::vector<std::vector<std::string>> ChooseRounds(
    const std::vector<const v1::NodeRecord*>& machines, bool share_one_machine, int num_max);

// Returns the result of a round for one of its members, without the time; all parts have ended. The
// rate and the failure are those that the member told. If it failed, and another one could not
// carry out its part or gave no result, this explains the failure: the result is a note.
megascale::control::v1::ExchangeResult RoundResultFor(const v1::Exchange& round, int member);

}  // namespace megascale::driver
