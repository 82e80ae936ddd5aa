// What the result of an exchange of bytes between machines means. Pure; threads: plain functions.
#pragma once

#include <string>

#include "proto/control.pb.h"

namespace megascale::machine {

enum class ExchangeVerdict {
  kPassed,
  kFailed,
  kUnknown,  // a part was not carried out
};
// Compares with the rate that was expected when the exchange ended. The median of exchanges that
// ended later does not tell how the network was at that time.
ExchangeVerdict Judge(const megascale::control::v1::ExchangeResult& result);

// "1.1 GiB/s"
std::string RateText(double bytes_per_second);

// Returns why the exchange failed, in one line; "": it did not fail.
std::string WhyFailed(const megascale::control::v1::ExchangeResult& result);

// Returns the worst of a machine's exchanges with other machines: the slowest that failed,
// otherwise the slowest that passed, otherwise one with an unknown verdict; null: no result.
const megascale::control::v1::ExchangeResult* WorstExchange(
    const google::protobuf::RepeatedPtrField<megascale::control::v1::ExchangeResult>& results);

}  // namespace megascale::machine
