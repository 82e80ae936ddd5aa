// Exchanges of bytes between two machines: who exchanges with whom, what the results mean, and
// which machine is at fault. For rounds among more machines see rounds.h. Pure; threads: plain
// functions.
// After its own test a machine exchanges with kExchangesWanted others, if so many are free. If none
// of these exchanges passes, it exchanges with more others, kExchangesMax in all, until one passes.
// A failed exchange alone does not tell which of its two machines is at fault.
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

// The number of others with which a machine exchanges, and the maximum if it has not passed with
// any of them.
inline constexpr int kExchangesWanted = 2;
inline constexpr int kExchangesMax = 4;
// This many of a machine's newest results are kept.
inline constexpr int kResultsKept = 16;
// The maximum number of exchanges that run at once. The members of an exchange find each other in
// the driver's store. There each exchange counts as an attempt of a job, and the store takes at
// most 1,024 attempts (embedded_store.h).
inline constexpr int kExchangesAtOnce = 256;
// An exchange fails if its rate is below this share of the expected rate.
inline constexpr double kExchangeRateShare = 0.5;
// The expected rate is the median of the machines' best rates, once this many machines have one. A
// machine has a best rate once it has exchanged with kExchangesWanted others, because with only one
// other, a slow partner would decide the rate.
inline constexpr int kRatesMin = 3;

// How much a machine sends in an exchange, to all other members together, and for how long at most.
// An exchange over a slow link ends after that time, and its rate is still measured.
struct ExchangeSize {
  int64_t volume_bytes = 0;
  absl::Duration time_max;
};
ExchangeSize SizeOf(megascale::agent::v1::TestKind kind);

// Returns the rate in bytes per second below which an exchange fails: half of the rate that the
// driver was told to expect. If it was told no rate: half of the median of the machines' best
// rates, once kRatesMin machines have one, but only if tests are full, because quick tests are too
// short. Agents that share a machine count as one, because they slow each other down. 0: every rate
// passes.
double MinimumExchangeRate(const v1::DriverState& state);

// What a result means (exchange_verdict.h).
using machine::ExchangeVerdict;
using machine::Judge;
using machine::RateText;
using machine::WhyFailed;
using machine::WorstExchange;

// Adds the result, in place of an older one with the same machine. The newest kResultsKept stay.
void KeepResult(const megascale::control::v1::ExchangeResult& result, v1::NodeExchanges* kept);

// Sets the minimum in those results of the machine that have no minimum: in new results, and in
// older ones from a time when no minimum was known. Returns whether it changed any. Call it for all
// machines with MinimumExchangeRate when an exchange has ended and its results are kept.
bool KeepMinimum(double minimum, v1::NodeRecord* node);

// Return whether an exchange of the machine passed, and whether one failed.
bool HasPassed(const v1::NodeRecord& node);
bool HasFailed(const v1::NodeRecord& node);

// Whether an exchange runs on the node.
bool IsExchanging(const v1::NodeRecord& node);

// Returns the exchange that runs on the node; null: there is none.
const v1::Exchange* FindExchange(const v1::DriverState& state, const v1::NodeRecord& node);

// Returns the exchange's name in the store, ExchangeRequest.group. No job has this id.
std::string GroupOf(const v1::Exchange& exchange);

// Return whether the agents of all these nodes, sorted by id, support DesiredJob.binds_address, and
// DesiredJob.evaluates.
bool AllBindAddresses(const v1::DriverState& state, const std::vector<std::string>& node_ids);
bool AllEvaluate(const v1::DriverState& state, const std::vector<std::string>& node_ids);

// Returns what the node's agent is asked to do. Requires: the node is a member.
megascale::agent::v1::MachineTestRequest RequestOf(const v1::DriverState& state,
                                                   const v1::Exchange& exchange,
                                                   absl::string_view node_id);

// Returns the result of a pair's exchange for member 0 or 1, without the time. Requires: both parts
// have ended. Both members get the same result, except if one member gave no result: that is a
// failure for this member, and only a note for the other. If a member could not carry out its part,
// the result of both is a note and no failure.
megascale::control::v1::ExchangeResult ResultFor(const v1::Exchange& exchange, int member);

// A machine that is free for an exchange now.
struct FreeMachine {
  const v1::NodeRecord* node = nullptr;
  // True: it holds memory of a job that recovers. It then exchanges only if it or its partner is
  // tested because of a failure.
  bool holds_memory = false;
};

// Returns whether the machine should still exchange with others.
bool WantsExchange(const v1::NodeRecord& node);

// Whether both agents run on one machine, as far as is known.
bool AreOnOneMachine(const v1::NodeRecord& node, const v1::NodeRecord& other);

// Returns whether all living agents that can exchange share one machine, as in a cluster on one
// machine. Only in this case do agents of one machine exchange with each other, because such an
// exchange does not test the network.
bool ShareOneMachine(const v1::DriverState& state);

// Returns pairs of different machines, no machine twice. No machine is paired with another one with
// which it has a result. A machine that has failed and never passed is paired with one that has
// passed, if there is one. Among equals, the machine with the fewest results is chosen. `machines`:
// in the order of their ids. `share_one_machine`: ShareOneMachine. Returns `num_max` pairs at most.
// Cost: the square of the number of machines if none has a partner.
std::vector<std::pair<std::string, std::string>> ChoosePairs(
    const std::vector<FreeMachine>& machines, bool share_one_machine, int num_max);

struct FaultyMachine {
  std::string node_id;
  std::string evidence;  // one line, for people
};
// Returns the living machines outside the quarantine that are at fault. Such a machine failed with
// machines of two or more parties (party.h) and passed with no machine, and one of these others
// passed with a machine of a third party.
std::vector<FaultyMachine> FindFaulty(const v1::DriverState& state);

}  // namespace megascale::driver
