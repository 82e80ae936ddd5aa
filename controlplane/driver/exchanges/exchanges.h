// Exchanges of bytes between two machines: who exchanges with whom, what the results mean, and
// which machine is at fault. Rounds among more machines: rounds.h. Pure; threads: plain functions.
//
// After its own test a machine exchanges with two others, if two others are free; with up to
// kExchangesMax, until one exchange has passed. A pair that fails names neither machine.
// Source: the checks between machines of MegaScale (Jiang et al., NSDI 2024, section 4).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/driver_log.pb.h"
#include "runtime/machine/exchange_verdict.h"

namespace megascale::driver {

// With how many others a machine exchanges, and with how many at most if it has passed with none.
inline constexpr int kExchangesWanted = 2;
inline constexpr int kExchangesMax = 4;
// How many of its results are kept, the newest.
inline constexpr int kResultsKept = 16;
// How many exchanges run at once. Each counts as an attempt of a job in the store in which its
// members find each other, and that takes 1,024 (embedded_store.h).
inline constexpr int kExchangesAtOnce = 256;
// An exchange fails below this share of the rate that is expected.
inline constexpr double kExchangeRateShare = 0.5;
// The expected rate is the median of what this many machines or more have reached at best, each
// with kExchangesWanted others. With one, a slow partner would decide what is expected of it.
inline constexpr int kRatesMin = 3;

// How much a machine sends, to all others together, and for how long at most. A slow link ends by
// the time, and its rate is known.
struct ExchangeSize {
  int64_t volume_bytes = 0;
  absl::Duration time_max;
};
ExchangeSize SizeOf(megascale::agent::v1::TestKind kind);

// Returns the rate in bytes per second below which an exchange fails: half of the rate that the
// driver was told to expect. If it was told none, half of the median of the machines' best rates,
// once kRatesMin machines have one; but only where tests are full: quick ones are too short. Agents
// that share a machine count as one, because they slow each other down. 0: every rate passes.
double MinimumExchangeRate(const v1::DriverState& state);

// What a result means (exchange_verdict.h).
using machine::ExchangeVerdict;
using machine::Judge;
using machine::RateText;
using machine::WhyFailed;
using machine::WorstExchange;

// Adds the result, in place of an older one with the same machine. The newest kResultsKept stay.
void KeepResult(const megascale::control::v1::ExchangeResult& result, v1::NodeExchanges* kept);

// Sets the minimum in those results of the machine that have none: in new ones, and in those from
// before there was one. Returns whether it changed any. Call it for all machines with
// MinimumExchangeRate when an exchange has ended and its results are kept.
bool KeepMinimum(double minimum, v1::NodeRecord* node);

// Whether an exchange of the machine passed, whether one failed.
bool HasPassed(const v1::NodeRecord& node);
bool HasFailed(const v1::NodeRecord& node);

// Whether an exchange runs on the node.
bool IsExchanging(const v1::NodeRecord& node);

// Returns the exchange that runs on the node; null: there is none.
const v1::Exchange* FindExchange(const v1::DriverState& state, const v1::NodeRecord& node);

// Returns the exchange's name in the store, ExchangeRequest.group. No job has this id.
std::string GroupOf(const v1::Exchange& exchange);

// Returns what the node's agent is asked to do. Requires: the node is a member.
megascale::agent::v1::MachineTestRequest RequestOf(const v1::DriverState& state,
                                                   const v1::Exchange& exchange,
                                                   absl::string_view node_id);

// Returns the result of a pair's exchange for member 0 or 1, without the time; both parts have
// ended. It is the same for both, except if one gave no result: that is a failure of this one, and
// says nothing about the other. What one of the two could not carry out explains a failure of the
// other.
megascale::control::v1::ExchangeResult ResultFor(const v1::Exchange& exchange, int member);

// A machine that is free for an exchange now.
struct FreeMachine {
  const v1::NodeRecord* node = nullptr;
  // Holds memory of a job that recovers: exchanges only if one of the two is tested for a failure.
  bool holds_memory = false;
};

// Returns whether the machine is to exchange with others yet.
bool WantsExchange(const v1::NodeRecord& node);

// Whether both agents run on one machine, as far as is known.
bool AreOnOneMachine(const v1::NodeRecord& node, const v1::NodeRecord& other);

// Returns whether all living agents that can exchange share one machine, as in a cluster on one
// machine. Only there agents of one machine exchange with each other: that proves no network.
bool ShareOneMachine(const v1::DriverState& state);

// Returns pairs of different machines, no machine twice. A machine that failed is paired with one
// that passed if there is one, and with none twice; among equals with the one that has the fewest
// results. `machines`: in the order of their ids. `share_one_machine`: ShareOneMachine. Returns
// `num_max` pairs at most. Cost: the square of the number of machines if none has a partner.
std::vector<std::pair<std::string, std::string>> ChoosePairs(
    const std::vector<FreeMachine>& machines, bool share_one_machine, int num_max);

struct FaultyMachine {
  std::string node_id;
  std::string evidence;  // one line, for people
};
// Returns the living machines outside the quarantine that are at fault: each failed with two or
// more others and passed with none, and one of these others passed with a third machine.
std::vector<FaultyMachine> FindFaulty(const v1::DriverState& state);

}  // namespace megascale::driver
