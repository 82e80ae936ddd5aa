// Exchanges of bytes between two machines: who exchanges with whom, what the results mean, and
// which machine is at fault. Pure; threads: plain functions.
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

namespace megascale::driver {

// With how many others a machine exchanges, and with how many at most if it has passed with none.
inline constexpr int kExchangesWanted = 2;
inline constexpr int kExchangesMax = 4;
// An exchange fails below this share of the rate that is expected.
inline constexpr double kExchangeRateShare = 0.5;
// The expected rate is the median of what this many machines or more have reached at best.
inline constexpr int kRatesMin = 3;

// How much is sent, and for how long at most. A slow link ends by the time, and its rate is known.
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

enum class ExchangeVerdict {
  kPassed,
  kFailed,
  kUnknown,  // a part was not carried out
};
// `minimum`: MinimumExchangeRate.
ExchangeVerdict Judge(const megascale::control::v1::ExchangeResult& result, double minimum);

// Returns why the exchange failed, in one line; "": it did not.
std::string WhyFailed(const megascale::control::v1::ExchangeResult& result, double minimum);

// Whether an exchange of the machine passed, whether one failed.
bool HasPassed(const v1::NodeRecord& node, double minimum);
bool HasFailed(const v1::NodeRecord& node, double minimum);

// Returns the exchange that runs on the node; null: there is none.
const v1::Exchange* FindExchange(const v1::DriverState& state, const v1::NodeRecord& node);

// Returns the exchange's name in the store, ExchangeRequest.group. No job has this id.
std::string GroupOf(const v1::Exchange& exchange);

// Returns what the node's agent is asked to do. Requires: the node is a member.
megascale::agent::v1::MachineTestRequest RequestOf(const v1::DriverState& state,
                                                   const v1::Exchange& exchange,
                                                   absl::string_view node_id);

// Returns the common result of an exchange whose parts have all ended, without the other machine's
// name and the time. What one of the two could not carry out explains a failure of the other.
megascale::control::v1::ExchangeResult ResultOf(const v1::Exchange& exchange);

// A machine that is free for an exchange now.
struct FreeMachine {
  const v1::NodeRecord* node = nullptr;
  // Holds memory of a job that recovers: exchanges only if one of the two is tested for a failure.
  bool holds_memory = false;
};

// Returns whether the machine is to exchange with others yet.
bool WantsExchange(const v1::NodeRecord& node, double minimum);

// Returns pairs of different machines, no machine twice. A machine that failed is paired with one
// that passed if there is one, and with none twice. `machines`: in the order of their ids.
// Cost: the square of the number of machines if none has a partner.
std::vector<std::pair<std::string, std::string>> ChoosePairs(
    const std::vector<FreeMachine>& machines, double minimum);

struct FaultyMachine {
  std::string node_id;
  std::string evidence;  // one line, for people
};
// Returns the living machines outside the quarantine that are at fault: each failed with two or
// more others and passed with none, and one of these others passed with a third machine.
std::vector<FaultyMachine> FindFaulty(const v1::DriverState& state);

}  // namespace megascale::driver
