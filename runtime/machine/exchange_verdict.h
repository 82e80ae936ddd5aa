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
// By the rate that was expected when it ended: the median of many machines that come later says
// nothing about what the network was like then.
ExchangeVerdict Judge(const megascale::control::v1::ExchangeResult& result);

// "1.1 GiB/s"
std::string RateText(double bytes_per_second);

// Returns why the exchange failed, in one line; "": it did not.
std::string WhyFailed(const megascale::control::v1::ExchangeResult& result);

// Returns the result with the other machine with which a machine did worst: one that failed, or
// else the slowest that passed; null: there is no result.
const megascale::control::v1::ExchangeResult* WorstExchange(
    const google::protobuf::RepeatedPtrField<megascale::control::v1::ExchangeResult>& results);

}  // namespace megascale::machine
